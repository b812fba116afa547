"""Transitions go into a replay memory whose bound was meant for smaller observations."""

import random
from collections import deque, namedtuple

import numpy as np
import torch

Transition = namedtuple("Transition", "state action reward next_state")


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque(maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, n):
        return random.sample(self.memory, n)


def env_step(t):
    return np.random.default_rng(t).integers(0, 255, (4, 84, 84), dtype=np.uint8)


memory = ReplayMemory(1_000_000)
q = torch.nn.Linear(64, 4)
opt = torch.optim.Adam(q.parameters())
state = env_step(0)
for t in range(1, 40_000):
    nxt = env_step(t)
    memory.push(state, t % 4, 0.1, nxt)
    state = nxt
    if t % 8 == 0 and len(memory.memory) > 64:
        picked = memory.sample(8)
        x = torch.stack([torch.from_numpy(p.state[0, :8, :8].reshape(-1)).float() for p in picked])
        loss = q(x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
