"""scikit-learn, a batch at a time."""

import numpy as np
from sklearn.linear_model import SGDClassifier

model = SGDClassifier()
rng = np.random.default_rng(0)
for _ in range(50):
    x = rng.standard_normal((200, 10))
    model.partial_fit(x, x[:, 0] > 0, classes=[False, True])
print("score", model.score(x, x[:, 0] > 0))
