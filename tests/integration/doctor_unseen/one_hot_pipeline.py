"""Categories with many levels pass a scikit-learn pipeline whose encoder gives a dense matrix."""

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler


def load(n=30_000):
    rng = np.random.default_rng(7)
    return pd.DataFrame(
        {
            "site": rng.integers(0, 1_500, n),
            "ad": rng.integers(0, 1_200, n),
            "hour": rng.integers(0, 24, n),
            "bid": rng.random(n),
            "click": rng.integers(0, 2, n),
        }
    )


def build():
    prep = ColumnTransformer(
        [
            ("cat", OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["site", "ad", "hour"]),
            ("num", StandardScaler(), ["bid"]),
        ]
    )
    return Pipeline([("prep", prep), ("clf", SGDClassifier(max_iter=5))])


if __name__ == "__main__":
    df = load()
    clf = build().fit(df.drop(columns="click"), df["click"])
    print("score", clf.score(df.drop(columns="click"), df["click"]))
