"""Mixup: each sample of a batch is blended with another one, x and y alike, in shares of its own.

Covers: batches of (x, y) with float targets, or classes by number that become shares of each class.
Does not cover: changes of single samples (augment.py).
"""

from __future__ import annotations

import numpy as np

from penstock.core.block import Block, to_numpy
from penstock.core.errors import InvalidInput
from penstock.core.schema import OBJECT
from penstock.core.source import Buffers
from penstock.plan.prepare import Mixup


def mixed_up(step: Mixup, batch: Block, rng: np.random.Generator, buffers: Buffers) -> Block:
    """The blended batch: float32, in recycled memory."""
    tree = batch.tree
    if not isinstance(tree, tuple) or len(tree) < 2 or not isinstance(tree[1], str):
        raise InvalidInput("mixup needs batches of (x, y).")
    x, y = tree[0], tree[1]
    if not isinstance(x, str):
        raise InvalidInput("mixup needs x to be one array, not several columns.")
    shares = rng.beta(step.alpha, step.alpha, batch.nrows).astype(np.float32)
    partner = rng.permutation(batch.nrows)
    columns = dict(batch.columns)
    columns[x] = _blend(_numbers("x", to_numpy(batch.columns[x])), shares, partner, buffers)
    columns[y] = _blend(_targets(step, to_numpy(batch.columns[y])), shares, partner, buffers)
    return Block(columns, tree, batch.origin)


def _blend(rows: np.ndarray, shares: np.ndarray, partner: np.ndarray, buffers: Buffers) -> np.ndarray:
    out = buffers.empty(rows.shape, np.float32)
    flat, made = rows.reshape(len(rows), -1), out.reshape(len(rows), -1)
    for row, other in enumerate(partner):  # row by row: what is read and written fits the processor's cache
        np.multiply(flat[row], shares[row], out=made[row], dtype=np.float32)
        made[row] += np.multiply(flat[other], np.float32(1) - shares[row], dtype=np.float32)
    return out


def _targets(step: Mixup, y: np.ndarray) -> np.ndarray:
    if y.dtype.kind not in "biu":
        return _numbers("y", y)
    if step.classes is None:
        raise InvalidInput("mixup: y holds classes by number; say how many there are: mixup(classes=10).")
    if y.ndim != 1 or (len(y) and not 0 <= int(y.min()) <= int(y.max()) < step.classes):
        raise InvalidInput(f"mixup: y must be numbers of classes 0 to {step.classes - 1}.")
    out = np.zeros((len(y), step.classes), np.float32)
    out[np.arange(len(y)), y.astype(np.int64)] = 1
    return out


def _numbers(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype == OBJECT or array.dtype.kind not in "biuf":
        raise InvalidInput(f"mixup: {name} must be of numbers, not {array.dtype}.")
    return array
