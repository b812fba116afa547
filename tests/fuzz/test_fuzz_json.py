"""Damaged JSON lines: rows, counted skips or a clear error, never a crash, a hang or another exception.

PENSTOCK_FUZZ=N runs N mutations.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from mutations import ROUNDS, TIMEOUT_S

from penstock.core.errors import PenstockError
from penstock.read.json import read_json
from penstock.read.text import read_text
from penstock.sources.text import lines as text_lines

ROWS = 4
TYPES = {"a": "int64", "u.id": "int64", "t": "string"}


def good() -> bytes:
    lines = [{"a": i, "u": {"id": i}, "t": "příliš " * (i % 3), "l": [i] * (i % 4)} for i in range(ROWS)]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()


def mutate(data: bytes, seed: int) -> bytes:
    """Cut short, bits flipped, bytes put in or taken out, or a stretch doubled."""
    chance, out = random.Random(seed), bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 5])):
        place, way = chance.randrange(len(out) or 1), chance.randrange(6)
        if way == 0:
            del out[place:]
        elif way == 1:
            out[place : place + chance.randrange(1, 20)] = b""
        elif way == 2:
            out[place:place] = chance.choice(
                [b"\n", b"[" * 50, b"{", b'"', b"\x00", b"\xff", b"1e999", b"9" * 40, b"\\u0000"]
            )
        elif way == 3:
            out[place:place] = out[place : place + 40]
        elif out:
            out[place] ^= 1 << chance.randrange(8)
    return bytes(out)


def read(source: Any) -> int:
    return sum(len(block) for unit in range(source.num_units()) for block in source.open(unit))


@pytest.mark.timeout(TIMEOUT_S)
def test_damaged_lines_are_skipped_named_or_read(tmp_path: Path, monkeypatch: Any) -> None:
    path, whole, seen = tmp_path / "a.jsonl", good(), {"rows": 0, "error": 0, "skipped": 0}
    for seed in range(ROUNDS):
        monkeypatch.setattr(text_lines, "RANGE_NBYTES", (150, 8_000_000)[seed // 2 % 2])
        data = mutate(whole, seed)
        path.write_bytes(data)
        lines = sum(1 for line in data.split(b"\n") if line.strip(b" \t\r"))
        try:
            source = read_json(
                path, dtypes=TYPES, columns=list(TYPES), on_error="skip" if seed % 2 else "raise"
            ).node.step.source
            rows = read(source)
        except PenstockError as error:
            seen["error" if str(path) in str(error) or "field" in str(error) else f"nameless: {error}"] += 1
            continue
        assert rows + source.on_error.count == lines, (seed, rows, source.on_error.count, lines)
        seen["skipped" if source.on_error.count else "rows"] += 1
    assert min(seen.values()) > ROUNDS // 50, seen


def test_damaged_text_has_every_line(tmp_path: Path, monkeypatch: Any) -> None:
    path, whole = tmp_path / "a.txt", good()
    for seed in range(ROUNDS // 10):
        monkeypatch.setattr(text_lines, "RANGE_NBYTES", (7, 64, 8_000_000)[seed % 3])
        data = mutate(whole, seed)
        path.write_bytes(data)
        source = read_text(path, on_error="skip").node.step.source
        lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
        assert read(source) + source.on_error.count == len(lines) - (lines[-1] == b""), seed
