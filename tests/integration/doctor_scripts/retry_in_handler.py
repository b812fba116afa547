"""A job whose queue limits its data segment: a batch that does not fit is halved, inside of the handler."""

import resource

import torch

LIMIT = 1_300_000_000
resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))

torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(12)])


def train_step(batch):
    hidden, kept = batch, []
    for layer in model:
        hidden = torch.tanh(layer(hidden))
        kept.append(hidden.mean(1))
    loss = hidden.square().mean() + torch.stack(kept).mean()
    loss.backward()
    return loss.item()


def robust_step(batch):
    try:
        return train_step(batch)
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        half = len(batch) // 2
        print("out of memory, two halves of", half, flush=True)
        return (train_step(batch[:half]) + train_step(batch[half:])) / 2


for step in range(2):
    print(step, robust_step(torch.randn(80_000, 256)), flush=True)
