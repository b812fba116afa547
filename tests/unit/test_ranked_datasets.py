"""Datasets inside a launcher: each rank reads its own part without being told to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock as ps
from penstock.core.errors import PositionError
from penstock.memory.limits import find_limit, list_limits

Enter = Callable[[int, int], None]


@pytest.fixture
def enter(monkeypatch: pytest.MonkeyPatch) -> Enter:
    """Become a rank, as torchrun's variables make one."""

    def become(rank: int, world: int) -> None:
        for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}.items():
            monkeypatch.setenv(name, str(value))

    return become


def table(folder: Path, rows: int) -> str:
    path = folder / "rows.csv"
    path.write_text("id,x\n" + "".join(f"{n},{n / 7}\n" for n in range(rows)))
    return str(path)


CHAINS: dict[str, Callable[[ps.Dataset], ps.Dataset]] = {
    "as it is": lambda ds: ds,
    "shuffled": lambda ds: ds.shuffle(seed=3),
    "batched": lambda ds: ds.shuffle(seed=3).batch(4).map(lambda row: row),
    "filtered": lambda ds: ds.filter(lambda row: row % 4 > 0).batch(5),
    "repeated": lambda ds: ds.batch(4).repeat(2),
    "taken": lambda ds: ds.take(31).batch(4),
    "zipped": lambda ds: ds.zip(ds).map(lambda a, b: a).batch(3),
}


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("world", [2, 3])
def test_together_the_ranks_see_what_one_process_sees(enter: Enter, chain: str, world: int) -> None:
    def rows(rank: int, of: int) -> Counter[int]:
        enter(rank, of)
        ds = CHAINS[chain](ps.from_tensor_slices(list(range(41))))
        if ds.cardinality is not None:
            assert ds.cardinality == len(list(CHAINS[chain](ps.from_tensor_slices(list(range(41))))))
        return Counter(int(n) for element in ds for n in (element if element.ndim else [element]))

    together: Counter[int] = Counter()
    for rank in range(world):
        mine = rows(rank, world)
        assert mine, f"rank {rank} has nothing"
        together += mine
    assert together == rows(0, 1)


def test_shard_overrules_what_is_found(enter: Enter) -> None:
    enter(1, 2)
    ds = ps.from_tensor_slices(list(range(6)))
    assert [int(n) for n in ds] == [1, 3, 5]
    assert [int(n) for n in ds.shard(0, 1)] == [0, 1, 2, 3, 4, 5]
    assert int(ds.peek()) == 0


def test_the_world_may_change_at_every_resume(enter: Enter, tmp_path: Path) -> None:
    path = table(tmp_path, 200)
    seen: Counter[int] = Counter()

    def dataset() -> ps.Dataset:
        return ps.read_csv(path).shuffle(seed=5).batch(7)

    positions: list[dict] = []
    for world, steps in ((4, 3), (3, 2), (2, 4), (1, 3), (4, None)):
        found = []
        for rank in range(world):
            enter(rank, world)
            ds = dataset().resume(positions) if positions else dataset()
            with iter(ds) as batches:
                for count, batch in enumerate(batches, 1):
                    seen.update(batch["id"].tolist())
                    if count == steps:
                        break
                found.append(batches.position)
        positions = found
    assert seen == Counter(range(200))


GROWING: dict[str, Callable[[str, int], ps.Dataset]] = {
    "shuffled": lambda path, size: ps.read_csv(path).shuffle(seed=5).batch(size),
    "in windows": lambda path, size: ps.read_csv(path).shuffle(seed=5, window=40).batch(size),
    "filtered": lambda path, size: ps.read_csv(path).shuffle(seed=5).filter(lambda row: row["id"] % 7 < 9).batch(size),
    "mapped batches": lambda path, size: ps.read_csv(path).batch(size).map(lambda batch: {"id": batch["id"]}),
    "arrays": lambda path, size: ps.from_tensor_slices({"id": list(range(400))}).shuffle(seed=2).batch(size),
    "repeated": lambda path, size: ps.read_csv(path).shuffle(seed=5).batch(size).repeat(1),
}


@pytest.mark.parametrize("begun", [1, 5, 12])
@pytest.mark.parametrize("chain", GROWING)
def test_a_run_of_one_process_grows(enter: Enter, tmp_path: Path, chain: str, begun: int) -> None:
    """1 -> 2 -> 4 -> 3 -> 1 ranks, with batches that share 12 rows: every row once."""
    path = table(tmp_path, 400)
    seen: Counter[int] = Counter()
    positions: list[dict] = []
    for world, steps in ((1, begun), (2, 3), (4, 2), (3, 4), (1, None)):
        found = []
        for rank in range(world):
            enter(rank, world)
            ds = GROWING[chain](path, 12 // world)
            with iter(ds.resume(positions) if positions else ds) as batches:
                for count, batch in enumerate(batches, 1):
                    seen.update(batch["id"].tolist())
                    if count == steps:
                        break
                found.append(batches.position)
        positions = found
    assert seen == Counter(range(400))


def test_ranks_take_the_position_of_a_process_alone_as_it_is(enter: Enter) -> None:
    enter(0, 1)
    ds = ps.from_tensor_slices(list(range(6)))
    with iter(ds) as rows:
        next(rows)
        alone = rows.position
    left = []
    for rank in range(2):
        enter(rank, 2)
        left += [int(n) for n in ds.resume(alone)]
    assert sorted(left) == [1, 2, 3, 4, 5]


def test_a_filter_of_batches_hides_where_a_process_alone_stood(enter: Enter) -> None:
    enter(0, 1)
    ds = ps.from_tensor_slices(list(range(40))).map(lambda n: n).batch(2).filter(lambda batch: batch[0] % 4 == 0)
    with iter(ds) as batches:
        next(batches)
        alone = batches.position
    enter(0, 2)
    with pytest.raises(PositionError, match="a filter of batches hides which"):
        ds.resume(alone)


def test_ranks_on_one_host_divide_its_memory(enter: Enter) -> None:
    enter(0, 1)
    whole = find_limit().nbytes
    enter(1, 4)
    assert find_limit().nbytes == whole // 4
    assert any("shared by 4 ranks" in limit.reason for limit in list_limits())
