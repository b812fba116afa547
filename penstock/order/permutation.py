"""Orders as arithmetic: a shuffled dataset of any length without a list of its rows.

Covers: a keyed permutation of 0..n-1 evaluated at any places, the order of single rows, random generators by key.
Does not cover: which rank reads what (stripe.py), mixing rows inside a window (engine/streams/window_shuffle.py).

The permutation is a Feistel network over the smallest even number of bits that holds n, walked on
until the value falls below n (cycle walking; fewer than four steps on average). Six rounds of a 64-bit mix
pass the tests of tests/unit/order for displacement, serial correlation and pair order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

_ROUNDS = 6
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SALT = np.uint64(0x9E3779B97F4A7C15)
_NO_SALT = np.uint64(0)


Key = tuple[int | str, ...]
"""What sets a block apart from all others (seed, epoch, place): the seed of random numbers."""


def key_of(*parts: int | str) -> int:
    """A 64-bit key from seed, epoch and whatever else sets an order apart."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def generator(*parts: int | str) -> np.random.Generator:
    """A random generator that depends on the key alone, not on what ran before."""
    return np.random.Generator(np.random.Philox(key=key_of(*parts)))


def hashed(numbers: np.ndarray) -> np.ndarray:
    """A fixed random-looking 64-bit value for each number."""
    return _mix((numbers.astype(np.uint64) + np.uint64(1)) * _SALT)


class Permutation:
    """A random order of 0..n-1, fixed by `key`, in constant memory."""

    def __init__(self, n: int, key: int) -> None:
        self.n = n
        bits = max(2, (max(n - 1, 1)).bit_length())
        self._half = np.uint64((bits + 1) // 2)
        self._mask = np.uint64((1 << int(self._half)) - 1)
        rounds = np.random.Generator(np.random.Philox(key=key))
        self._keys = rounds.integers(0, 2**64, size=_ROUNDS, dtype=np.uint64)

    def at(self, places: np.ndarray, members: np.ndarray | None = None) -> np.ndarray:
        """What stands at the given places, as int64. Each of the `members` of a family has an order of its own."""
        salt = _NO_SALT if members is None else _mix(members.astype(np.uint64) + _SALT)
        salts = np.broadcast_to(salt, places.shape)
        out = self._rounds(places.astype(np.uint64), salts)
        outside = np.flatnonzero(out >= self.n)
        while outside.size:
            walked = self._rounds(out[outside], salts[outside])
            out[outside] = walked
            outside = outside[walked >= self.n]
        return out.astype(np.int64)

    def _rounds(self, values: np.ndarray, salts: np.ndarray) -> np.ndarray:
        left, right = values >> self._half, values & self._mask
        for key in self._keys:
            left, right = right, left ^ (_mix(right ^ key ^ salts) & self._mask)
        joined: np.ndarray = (left << self._half) | right
        return joined


def places_of_rows(total: int, seed: int | None, epoch: tuple[int, ...]) -> Callable[[np.ndarray], np.ndarray]:
    """Which rows stand at given places of an epoch: as stored, or, with a seed, uniformly shuffled."""
    if seed is None:
        return lambda places: places
    return Permutation(total, key_of("rows", seed, *epoch)).at


def _mix(values: np.ndarray) -> np.ndarray:
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed
