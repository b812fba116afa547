"""Loads a checkpoint beside the model."""

import torch

model = torch.nn.Linear(6_000, 6_000)
state = torch.load("weights.pt")
model.load_state_dict(state)
print("loaded")
