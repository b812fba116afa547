"""Logits over a large vocabulary: the loss and its gradient need them three times more."""

import torch

torch.set_num_threads(2)
head = torch.nn.Linear(64, 40_000, bias=False)
optimizer = torch.optim.SGD(head.parameters(), 0.1)
for step in range(3):
    hidden, target = torch.randn(1_200, 64), torch.randint(0, 40_000, (1_200,))
    logits = head(hidden)
    loss = torch.nn.functional.cross_entropy(logits, target)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", loss.item(), flush=True)
