"""A table in chunks."""

import pandas as pd

pd.DataFrame({"a": range(10_000), "b": range(10_000)}).to_csv("small.csv", index=False)
total = 0
for chunk in pd.read_csv("small.csv", chunksize=1_000):
    total += int(chunk["a"].sum())
print("total", total)
