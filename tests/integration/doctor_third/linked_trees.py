"""A search keeps nodes that know their parents; each tree is dropped, and only the collector could free it."""

import numpy as np


class Node:
    def __init__(self, state, parent=None):
        self.state, self.parent, self.children = state, parent, []

    def expand(self, width, rng):
        for _ in range(width):
            self.children.append(Node(self.state + rng.standard_normal(self.state.shape), self))
        return self.children


def simulate(rng):
    root = Node(np.zeros(300_000))
    best = max(root.expand(3, rng), key=lambda node: node.state[0])
    return float(best.state[0])


def main():
    rng = np.random.default_rng(5)
    scores = []
    for trial in range(400):
        scores.append(simulate(rng))
        if trial % 10 == 0:
            print(trial, np.mean(scores), flush=True)


if __name__ == "__main__":
    main()
