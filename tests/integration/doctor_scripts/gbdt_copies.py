"""xgboost copies the table."""

import numpy as np
import xgboost

table = np.random.default_rng(0).standard_normal((400_000, 60))
labels = (table[:, 0] > 0).astype(np.float32)
matrix = xgboost.DMatrix(table, label=labels)
xgboost.train({"max_depth": 3, "tree_method": "hist", "nthread": 2}, matrix, num_boost_round=3)
print("trained")
