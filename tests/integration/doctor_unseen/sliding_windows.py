"""A series becomes overlapping windows, each row a copy of almost the same numbers."""

import numpy as np
import torch


def create_sequences(data, seq_length):
    xs, ys = [], []
    for i in range(len(data) - seq_length - 1):
        xs.append(data[i : (i + seq_length)].copy())
        ys.append(data[i + seq_length])
    return np.array(xs), np.array(ys)


series = np.cumsum(np.random.default_rng(0).standard_normal((60_000, 4)).astype(np.float32), 0)
series = (series - series.mean(0)) / series.std(0)
X, y = create_sequences(series, 365)
X, y = torch.tensor(X), torch.tensor(y)

lstm = torch.nn.LSTM(4, 16, batch_first=True)
fc = torch.nn.Linear(16, 4)
opt = torch.optim.Adam([*lstm.parameters(), *fc.parameters()])
for start in range(0, 2_000, 64):
    out, _ = lstm(X[start : start + 64])
    loss = ((fc(out[:, -1]) - y[start : start + 64]) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print("trained", float(loss))
