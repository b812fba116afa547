"""A tensor is made longer by one piece at a time: old and new are there together in every turn."""

import torch

features = torch.empty(0, 1024)
for piece in range(200):
    block = torch.randn(512, 1024)
    features = torch.cat([features, block])
print("features", tuple(features.shape))
