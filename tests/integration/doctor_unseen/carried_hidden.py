"""The hidden state of a recurrent network is carried from batch to batch, with all of its past."""

import torch
from torch import nn


class CharModel(nn.Module):
    def __init__(self, vocab=96, width=256):
        super().__init__()
        self.emb = nn.Embedding(vocab, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, vocab)

    def forward(self, ids, h=None):
        y, h = self.rnn(self.emb(ids), h)
        return self.out(y), h


model = CharModel()
text = torch.randint(0, 96, (32, 40_000))
opt = torch.optim.RMSprop(model.out.parameters(), lr=1e-3)
h = None
for pos in range(0, text.shape[1] - 33, 32):
    logits, h = model(text[:, pos : pos + 32], h)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1)[:64], text[:, pos + 1 : pos + 33].flatten()[:64])
    grads = torch.autograd.grad(loss, list(model.out.parameters()), retain_graph=True)
    opt.zero_grad()
    for p, g in zip(model.out.parameters(), grads):
        p.grad = g
    opt.step()
print("end", loss.item())
