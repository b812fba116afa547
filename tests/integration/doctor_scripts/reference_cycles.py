"""Objects that refer to each other, with the collector switched off."""

import gc
import time

import numpy as np

gc.disable()


class Node:
    def __init__(self):
        self.data = np.ones(500_000)
        self.me = self


for step in range(150):
    Node()
    time.sleep(0.02)
print("steps", step)
