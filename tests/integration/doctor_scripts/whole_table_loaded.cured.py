"""Reads it in chunks."""

import pandas as pd

total = count = 0
for part in pd.read_csv("table.csv", chunksize=20_000):
    total, count = total + float(part.iloc[:, 0].sum()), count + len(part)
print("mean", total / count)
