"""XGBoost's scikit-learn face is given float64: it makes float32 and quantised copies beside it."""

import numpy as np
from xgboost import XGBRegressor

rng = np.random.default_rng(1)
table = rng.standard_normal((400_000, 60))
target = table[:, 0] * 2 + rng.standard_normal(400_000)
model = XGBRegressor(n_estimators=20, max_depth=4, n_jobs=2, tree_method="exact")
model.fit(table, target)
print("rounds", model.get_booster().num_boosted_rounds())
