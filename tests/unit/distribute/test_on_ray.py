"""What a rank on Ray decides before it runs; Ray itself is in tests/integration/test_on_ray.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.distribute.on_ray import HERE, command
from penstock.distribute.ray_rank import smaller_after_kill
from penstock.guard.stop import STOP_FILE_ENV, StopSignal
from penstock.guard.supervisor_hints import write_hint


def test_the_command_names_ranks_cluster_module_and_folders(tmp_path: Path) -> None:
    argv = command(4, None, "some.module", tmp_path, tmp_path / "saved")
    assert argv[1:] == [
        "-m", "penstock.distribute.on_ray", "4", HERE, "some.module", str(tmp_path), str(tmp_path / "saved"),
    ]  # fmt: skip


def test_only_a_kill_for_memory_on_this_host_halves_the_micro_batch(tmp_path: Path) -> None:
    config = {"folder": str(tmp_path), "checkpoints": str(tmp_path / "saved")}
    write_hint(tmp_path / "saved", {"micro": 16, "batch": 64})
    assert smaller_after_kill(config, 3, "host-0") is None  # the first start: kills of before are somebody else's
    assert smaller_after_kill(config, 3, "host-0") is None  # killed by hand
    assert smaller_after_kill(config, 4, "host-1") is None
    assert smaller_after_kill(config, 4, "host-0") == 8
    write_hint(tmp_path / "saved", {"micro": 1, "batch": 64})
    assert smaller_after_kill(config, 5, "host-0") == 1


def test_ranks_that_no_signal_reaches_are_asked_to_stop_by_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STOP_FILE_ENV, str(tmp_path / "stop"))
    stop = StopSignal(enabled=False)
    assert not stop.asked
    (tmp_path / "stop").touch()
    assert stop.asked
