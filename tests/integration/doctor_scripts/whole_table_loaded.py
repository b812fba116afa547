"""Reads a whole table."""

import pandas as pd

table = pd.read_csv("table.csv")
print("mean", float(table.iloc[:, 0].mean()))
