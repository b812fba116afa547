"""float32, in pieces, binned at once."""

import numpy as np
import xgboost


class Pieces(xgboost.DataIter):
    def __init__(self):
        self.place = 0
        super().__init__()

    def next(self, give):
        if self.place == 8:
            return False
        rows = np.random.default_rng(self.place).standard_normal((50_000, 60), np.float32)
        give(data=rows, label=(rows[:, 0] > 0).astype(np.float32))
        self.place += 1
        return True

    def reset(self):
        self.place = 0


matrix = xgboost.QuantileDMatrix(Pieces(), max_bin=64)
xgboost.train({"max_depth": 3, "tree_method": "hist", "nthread": 2, "max_bin": 64}, matrix, num_boost_round=3)
print("trained")
