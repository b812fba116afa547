"""The loss in chunks of rows."""

import torch

torch.set_num_threads(2)
head = torch.nn.Linear(64, 40_000, bias=False)
optimizer = torch.optim.SGD(head.parameters(), 0.1)
for step in range(3):
    hidden, target = torch.randn(1_200, 64), torch.randint(0, 40_000, (1_200,))
    total = 0.0
    for rows, labels in zip(hidden.split(100), target.split(100)):
        loss = torch.nn.functional.cross_entropy(head(rows), labels, reduction="sum") / len(target)
        loss.backward()
        total += loss.item()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", total, flush=True)
