"""Text is read as Python objects."""

import pandas as pd

names = pd.DataFrame({"city": [f"city-{n % 50}" for n in range(200_000)]})
table = pd.DataFrame(
    {f"c{n}": names["city"].astype(object).map(lambda text: text + "!") for n in range(30)}, dtype=object
)
print("rows", len(table), table["c0"].nunique())
