"""A sparse matrix of words becomes a dense one for an estimator."""

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import SGDClassifier

rng = np.random.default_rng(0)
words = [f"word{n}" for n in range(12_000)]
texts = [" ".join(rng.choice(words, 20)) for _ in range(6_000)]
counts = CountVectorizer().fit_transform(texts)
labels = np.arange(len(texts)) % 2
model = SGDClassifier(max_iter=3).fit(np.asarray(counts.todense()), labels)
print("score", model.score(counts, labels))
