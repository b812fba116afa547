"""After training, the embedding of every sample is put into a dictionary by its number."""

import torch

encoder = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 4096))
optimizer = torch.optim.AdamW(encoder.parameters())
for _ in range(20):
    optimizer.zero_grad()
    encoder(torch.randn(64, 64)).square().mean().backward()
    optimizer.step()

encoder.eval()
by_number = {}
with torch.inference_mode():
    for number in range(0, 100_000, 100):
        vectors = encoder(torch.randn(100, 64))
        for place, vector in enumerate(vectors):
            by_number[number + place] = vector
print("vectors", len(by_number))
