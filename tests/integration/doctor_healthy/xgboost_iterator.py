"""XGBoost from an iterator."""

import numpy as np
import xgboost


class Pieces(xgboost.DataIter):
    def __init__(self):
        self.place = 0
        super().__init__()

    def next(self, give):
        if self.place == 4:
            return False
        rows = np.random.default_rng(self.place).standard_normal((1_000, 10), np.float32)
        give(data=rows, label=(rows[:, 0] > 0).astype(np.float32))
        self.place += 1
        return True

    def reset(self):
        self.place = 0


model = xgboost.train({"max_depth": 3, "nthread": 2}, xgboost.QuantileDMatrix(Pieces()), num_boost_round=5)
print("rounds", model.num_boosted_rounds())
