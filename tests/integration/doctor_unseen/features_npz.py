"""Features were saved as an npz archive and are read, converted and split before the first epoch."""

import argparse

import numpy as np
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split


def get_data(path):
    f = np.load(path)
    X, y = f["features"], f["labels"]
    X = X.astype("float64") / 255.0
    return train_test_split(X, y, test_size=0.2, random_state=0)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--data", default="features.npz")
    args = ap.parse_args()
    X_tr, X_te, y_tr, y_te = get_data(args.data)
    clf = SGDClassifier(max_iter=1).fit(X_tr, y_tr)
    print(clf.score(X_te, y_te))
