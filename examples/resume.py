"""Stop after some batches, go on in another dataset object (or process, or machine) at the next one.

python examples/resume.py
"""

from __future__ import annotations

import json

import penstock as ps


def dataset() -> ps.Dataset:
    return ps.from_tensor_slices(list(range(1000))).shuffle(seed=5).map(lambda n: n * 2).batch(100)


def main() -> None:
    iterator = iter(dataset())
    seen = [next(iterator) for _ in range(4)]
    text = json.dumps(iterator.position)
    print(f"stopped after {len(seen)} batches; the position is {len(text)} bytes: {text}")
    rest = list(dataset().resume(text))
    everything = sorted(int(n) for batch in (*seen, *rest) for n in batch)
    print("nothing lost, nothing twice:", everything == list(range(0, 2000, 2)))


if __name__ == "__main__":
    main()
