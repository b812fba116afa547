"""A small table, read whole and joined: nothing is wrong with that."""

import pandas as pd

pd.DataFrame({"a": range(1_000), "c": ["x", "y"] * 500}).to_csv("tiny.csv", index=False)
table = pd.get_dummies(pd.read_csv("tiny.csv"))
both = pd.concat([table, table])
print("rows", len(both))
