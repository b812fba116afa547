"""Clicks with many missing values are binned for boosting, with a validation set beside them."""

import numpy as np
import pandas as pd
import xgboost as xgb

FEATURES = [f"f_{i:02d}" for i in range(60)]


def load_clicks(n):
    rng = np.random.default_rng(7)
    frame = pd.DataFrame(rng.random((n, len(FEATURES))), columns=FEATURES)
    for name in FEATURES[::3]:
        frame.loc[rng.random(n) < 0.4, name] = np.nan
    target = (frame["f_01"] > 0.5).astype(int)
    return frame, target


def main():
    frame, target = load_clicks(300_000)
    cut = int(len(frame) * 0.8)
    print("features ready", frame.shape, flush=True)
    train = xgb.DMatrix(frame.iloc[:cut], label=target.iloc[:cut])
    valid = xgb.DMatrix(frame.iloc[cut:], label=target.iloc[cut:])
    booster = xgb.train(
        {"objective": "binary:logistic", "tree_method": "approx", "max_depth": 4},
        train,
        num_boost_round=10,
        evals=[(valid, "valid")],
    )
    print(booster.best_iteration if hasattr(booster, "best_iteration") else "done")


main()
