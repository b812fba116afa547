"""Training without code: data recognised, prepared, split, trained under a supervisor, and predicted with afterwards.

Covers: everything behind `penstock train` and `penstock predict`.
Does not cover: the commands' options (cli/), the training step (guard/), recording and pages (watch/).
"""
