"""A recommender: the embedding fits well, and Adam's moments for it do not."""

import torch


class Recommender(torch.nn.Module):
    def __init__(self, users, items, dim):
        super().__init__()
        self.user = torch.nn.Embedding(users, dim)
        self.item = torch.nn.Embedding(items, dim)

    def forward(self, u, i):
        return (self.user(u) * self.item(i)).sum(-1)


net = Recommender(400_000, 200_000, 64)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
criterion = torch.nn.BCEWithLogitsLoss()
for batch in range(200):
    u, i = torch.randint(0, 400_000, (1024,)), torch.randint(0, 200_000, (1024,))
    loss = criterion(net(u, i), torch.rand(1024).round())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(batch, loss.item(), flush=True)
