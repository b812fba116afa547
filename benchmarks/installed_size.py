"""What an installation of the core takes on disk, now and when its kernels were Numba's.

Covers: every file that pip notes for penstock's dependencies and theirs, bytecode too, in blocks of the file system.
Does not cover: extras; memory (first_pass.py). Needs Numba beside the dependencies, as kernels.py does.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from benchmarks.kernels import LAST_NUMBA

ROOT = Path(__file__).resolve().parents[1]
SMALLER_MB = 200


def on_disk(paths: Iterable[Path]) -> int:
    """Bytes in blocks of the file system."""
    return sum(path.stat().st_blocks * 512 for path in paths if path.is_file())


def installed(project: str) -> dict[str, int]:
    """Bytes of each distribution that the dependencies of a pyproject.toml bring."""
    found: dict[str, int] = {}
    wanted = list(tomllib.loads(project)["project"]["dependencies"])
    while wanted:
        requirement = Requirement(wanted.pop())
        marker = requirement.marker
        if requirement.name.lower() in found or (marker is not None and not marker.evaluate({"extra": ""})):
            continue
        distribution = importlib.metadata.distribution(requirement.name)
        found[requirement.name.lower()] = on_disk(
            Path(str(distribution.locate_file(file))) for file in distribution.files or ()
        )
        wanted += distribution.requires or ()
    return found


def run(options: Any) -> None:
    """Add up, compare, write."""
    from benchmarks import report

    before = subprocess.run(
        ["git", "show", f"{LAST_NUMBA}:pyproject.toml"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    old, new = installed(before), installed((ROOT / "pyproject.toml").read_text())
    names = sorted({*old, *new}, key=lambda name: -old.get(name, 0))
    rows = [[name, *(f"{one[name] / 1e6:.1f}" if name in one else "" for one in (old, new))] for name in names]
    total_old, total_new = sum(old.values()) / 1e6, sum(new.values()) / 1e6
    rows.append(["together", f"{total_old:.0f}", f"{total_new:.0f}"])
    kernels = on_disk([ROOT / "penstock" / "native" / "_kernels.so"]) / 1e6
    about = (
        "The files that pip has noted for the core's dependencies and theirs, bytecode too, in blocks of the file "
        f"system; the versions are those of this machine for both. The library of kernels itself is {kernels:.1f} MB."
    )
    less = total_old - total_new
    verdicts = [report.Verdict(f"the core takes at least {SMALLER_MB} MB less", f"{less:.0f} MB", less >= SMALLER_MB)]
    told = {"before": old, "now": new}
    report.Paper("installed_size", "What an installation of the core takes", about, report.machine(),
                 ("distribution", "MB with Numba's kernels", "MB now"), rows, verdicts, told, {},
                 options.quick).write()  # fmt: skip
    plt = report.plotter()
    figure, axis = plt.subplots(figsize=(7, 1.8))
    axis.barh(["now", "with Numba's kernels"], [total_new, total_old], color="#1f6feb")
    axis.set(xlabel="MB on disk")
    report.save(figure, "installed_size", options.quick)
