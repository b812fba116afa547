"""Repeated text is kept as categories."""

import pandas as pd

names = pd.DataFrame({"city": [f"city-{n % 50}" for n in range(200_000)]})
table = pd.DataFrame()
for n in range(30):
    table[f"c{n}"] = names["city"].map(lambda text: text + "!").astype("category")
print("rows", len(table), table["c0"].nunique())
