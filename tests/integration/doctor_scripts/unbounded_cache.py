"""A cache filled by __getitem__, without a bound."""

import time

import numpy as np


class Pictures:
    def __init__(self):
        self.cache = {}

    def __getitem__(self, place):
        if place not in self.cache:
            self.cache[place] = np.full((1000, 1000), place % 256, np.uint8)
        return self.cache[place]


pictures = Pictures()
total = 0.0
for place in range(600):
    total += float(pictures[place][0, 0])
    time.sleep(0.01)
print("total", total)
