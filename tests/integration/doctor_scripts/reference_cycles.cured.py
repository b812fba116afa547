"""The same without a cycle."""

import numpy as np


class Node:
    def __init__(self):
        self.data = np.ones(500_000)


for step in range(150):
    Node()
print("steps", step)
