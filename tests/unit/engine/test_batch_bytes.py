"""Batches of columns whose width is open are grouped and leased by what they really hold."""

from __future__ import annotations

import penstock as ps
from penstock.engine.pipe import pipe

BLOB = 40_000


def blobs():
    for i in range(2_000):
        yield {"n": i, "blob": bytes([i % 251]) * BLOB}


def test_wide_blobs_are_not_gathered_many_batches_at_a_time() -> None:
    batches = iter(ps.from_generator(blobs).batch(16))
    seen = [next(batches) for _ in range(3)]
    held = pipe().budget.holders()["batches"]
    batches.close()
    assert [len(b["n"]) for b in seen] == [16, 16, 16]
    assert seen[2]["blob"][0] == bytes([32]) * BLOB
    # A group is one batch of 640 KB here; a schema's guess of 64 bytes a blob had made it 64 of them.
    assert 16 * BLOB <= held <= 20 * 16 * BLOB
