"""scikit-learn on bundled data."""

from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier

x, y = load_digits(return_X_y=True)
print("score", RandomForestClassifier(20, n_jobs=1).fit(x, y).score(x, y))
