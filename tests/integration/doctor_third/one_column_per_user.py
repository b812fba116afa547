"""A categorical column becomes one column per value."""

import numpy as np
import pandas as pd
from sklearn.linear_model import Ridge

rng = np.random.default_rng(11)
rides = pd.DataFrame({"driver": rng.integers(0, 5_000, 60_000).astype(str), "minutes": rng.exponential(12, 60_000)})
print(rides.describe(), flush=True)
design = pd.get_dummies(rides, columns=["driver"], dtype="float32")
model = Ridge(solver="lsqr").fit(design.drop(columns="minutes"), design["minutes"])
print(model.coef_[:5])
