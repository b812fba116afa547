"""A C library that is called at every step loses what it allocates: no Python name holds it."""

import ctypes

import torch

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]


def augment(x):
    scratch = libc.malloc(1_000_000)
    libc.memset(scratch, 1, 1_000_000)
    return x * 0.9


model = torch.nn.Linear(128, 128)
opt = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(1_500):
    x = augment(torch.randn(256, 128))
    loss = (model(x) - x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print("done", loss.item())
