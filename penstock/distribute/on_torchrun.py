"""Several ranks on this machine, started by torchrun's own launcher.

Covers: `python -m penstock.distribute.on_torchrun N MODULE ARGUMENTS`, and an exit code that says how a rank died.
Does not cover: what the ranks do, starting them again after a death (guard/supervise.py).

torchrun reports every death as exit code 1. A supervisor must tell a rank that the kernel killed from one that failed,
so a rank's signal becomes the exit code, as a shell would have it: 137 for SIGKILL.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.core.errors import MissingExtra
from penstock.guard.stop import LOST_CODE

DEATHS = "PENSTOCK_RANK_DEATHS"
"""Names the file in which the launcher says, as a JSON list, which ranks a signal has ended."""


def command(workers: int, module: str, *arguments: str) -> list[str]:
    """The command that starts so many ranks of a module."""
    return [sys.executable, "-m", "penstock.distribute.on_torchrun", str(workers), module, *arguments]


def launch(workers: int, module: str, arguments: Sequence[str]) -> int:
    """Run the ranks to their end; 0, or the worst rank's exit code."""
    try:
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch
    except ImportError as error:
        raise MissingExtra(what="--workers", extra="torch") from error
    # Without it, ranks that are started again find the keys of the dead ones in the store and may hang.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=workers, run_id="penstock", rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0", max_restarts=0, monitor_interval=0.1, local_addr="127.0.0.1",
    )  # fmt: skip
    try:
        elastic_launch(config, sys.executable)("-m", module, *arguments)
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        if DEATHS in os.environ:
            Path(os.environ[DEATHS]).write_text(json.dumps(died(codes)))
        return exit_code(list(codes.values()))
    return 0


def died(codes: Mapping[int, int]) -> list[int]:
    """The ranks that a signal ended, other than the SIGTERM with which the launcher ends the rest."""
    return sorted(rank for rank, code in codes.items() if code < 0 and code != -15)


def exit_code(codes: Sequence[int]) -> int:
    """One exit code for all ranks: a signal's before an error's, since ranks that lose a fellow fail too.

    SIGTERM is how the launcher ends the others, so it counts only where nothing else happened. A rank that has lost
    another one is no worse than one that failed.
    """
    codes = [1 if code == LOST_CODE else code for code in codes]
    signals = [code for code in codes if code < 0]
    deadly = [code for code in signals if code != -15] or [code for code in codes if code > 0] or signals
    worst = min(deadly) if deadly and min(deadly) < 0 else max(deadly, default=1)
    return worst if worst > 0 else 128 - worst


if __name__ == "__main__":
    sys.exit(launch(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
