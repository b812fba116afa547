"""What was measured, as JSON, as a table and as a picture, with every target's verdict computed.

Covers: the machine, targets, writing benchmarks/results/NAME.{json,md,png} and summary.md.
Does not cover: measuring (harness.py).
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Score

RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = (
    "penstock", "numpy", "pyarrow", "opencv-python-headless", "simplejpeg", "pillow", "tensorflow-cpu",
    "torch", "grain", "spdl", "polars", "pandas", "h5py",
)  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """A target and what became of it. `reached` is None where it could not be measured."""

    target: str
    found: str
    reached: bool | None

    @property
    def word(self) -> str:
        return "not measured" if self.reached is None else "reached" if self.reached else "missed"


def at_least(scores: Sequence[Score], ours: str, peers: Sequence[str], factor: float, what: str) -> Verdict:
    """Our rate against the fastest of the peers: the median of the rounds' own ratios, which drift cannot bend."""
    target = f"`{ours}` >= {factor:g}x {what}"
    mine = next(s for s in scores if s.name == ours)
    rivals = [s for s in scores if s.name in peers and s.median("rate") is not None]
    if mine.median("rate") is None or not rivals:
        return Verdict(target, "no peer ran" if not rivals else "failed", None if not rivals else False)
    best = max(rivals, key=lambda s: s.median("rate") or 0.0)
    pairs = [(a["rate"], b["rate"]) for a, b in zip(mine.rounds, best.rounds) if a is not None and b is not None]
    if not pairs:
        return Verdict(target, "no round in which both ran", None)
    ratios = [a / b for a, b in pairs]
    ratio = statistics.median(ratios)
    return Verdict(target, f"{ratio:.2f}x ({min(ratios):.2f}-{max(ratios):.2f}) `{best.name}`", ratio >= factor)


def no_more_memory(scores: Sequence[Score], ours: str, peers: Sequence[str]) -> Verdict:
    """Our growth over the imports against the leanest peer's."""
    target = f"`{ours}`: memory growth over the imports <= the leanest peer's"
    mine = next(s for s in scores if s.name == ours).median("growth_mb")
    rivals = {s.name: grown for s in scores if s.name in peers and (grown := s.median("growth_mb")) is not None}
    if mine is None or not rivals:
        return Verdict(target, "failed" if mine is None else "no peer ran", False if mine is None else None)
    leanest = min(rivals, key=lambda name: rivals[name])
    return Verdict(target, f"{mine:.0f} MB against {rivals[leanest]:.0f} MB of `{leanest}`", mine <= rivals[leanest])


def machine() -> dict[str, Any]:
    """Where this was measured."""
    text = Path("/proc/cpuinfo").read_text() if os.path.exists("/proc/cpuinfo") else ""
    model = next((line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")), "")
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": model or platform.processor() or "unknown",
        "ram_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "load_before": round(os.getloadavg()[0], 1),
        "versions": versions,
    }


@dataclass(frozen=True)
class Paper:
    """One result: title, what was done, columns of the table, and the numbers."""

    name: str
    title: str
    about: str
    where: dict[str, Any]
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    verdicts: Sequence[Verdict]
    data: dict[str, Any]
    errors: dict[str, str]
    quick: bool
    plot: bool = True

    def write(self) -> None:
        """Write the JSON and the page; the picture is drawn by `bars` or `lines`. A quick run leaves results alone."""
        folder = folder_for(self.quick)
        folder.mkdir(parents=True, exist_ok=True)
        verdicts = [{**asdict(v), "verdict": v.word} for v in self.verdicts]
        told = {
            "name": self.name, "title": self.title, "quick": self.quick, "machine": self.where, "verdicts": verdicts,
            "errors": self.errors, **self.data,
        }  # fmt: skip
        (folder / f"{self.name}.json").write_text(json.dumps(told, indent=1) + "\n")
        (folder / f"{self.name}.md").write_text(self._page())

    def _page(self) -> str:
        where = self.where
        versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
        quick = "\n**A quick run with tiny sizes: these numbers say nothing.**\n" if self.quick else ""
        failed = "".join(f"\n`{n}` failed:\n\n```\n{text.strip()}\n```\n" for n, text in self.errors.items())
        return (
            f"# {self.title}\n{quick}\n{self.about}\n\n"
            f"{where['cores']} cores, {where['cpu']}, {where['ram_gb']} GB RAM; {where['date']}; "
            f"load before the start {where['load_before']}.\n\n"
            + table(self.columns, self.rows)
            + self._targets()
            + (f"\n![plot]({self.name}.png)\n" if self.plot else "")
            + f"{failed}\nPython {where['python']}, {versions}.\n"
        )

    def _targets(self) -> str:
        if not self.verdicts:
            return ""
        rows = [(v.target, v.found, v.word) for v in self.verdicts]
        return "\n## Targets\n\n" + table(("target", "found", "verdict"), rows)


def folder_for(quick: bool) -> Path:
    """Quick runs must not overwrite what is committed."""
    return RESULTS.parent.parent / ".bench" / "quick-results" if quick else RESULTS


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def race_rows(scores: Sequence[Score]) -> list[list[str]]:
    """Table rows, the fastest first: rate, spread, processor time, growth, first batch."""
    rows = []
    for score in sorted(scores, key=lambda s: -(s.median("rate") or 0.0)):
        rates = score.values("rate")
        if not rates:
            rows.append([score.name, "failed", "", "", "", "", ""])
            continue
        mid = {key: score.median(key) or 0.0 for key in ("rate", "cpu_us", "growth_mb", "baseline_mb", "first_s")}
        rows.append([
            score.name, f"{mid['rate']:,.0f}", f"{min(rates):,.0f}-{max(rates):,.0f}", f"{mid['cpu_us']:,.2f}",
            f"{mid['growth_mb']:,.0f}", f"{mid['baseline_mb']:,.0f}", f"{mid['first_s']:.2f}",
        ])  # fmt: skip
    return rows


def race_columns(unit: str) -> list[str]:
    """The heads of `race_rows`."""
    return [
        "loader", f"{unit}/s, median", "min-max", f"CPU us/{unit.rstrip('s')}", "growth MB", "imports MB",
        "first batch s",
    ]  # fmt: skip


def write_race(name: str, title: str, about: str, unit: str, scores: Sequence[Score], verdicts: Sequence[Verdict],
               where: dict[str, Any], *, quick: bool) -> None:  # fmt: skip
    """The three files of a race."""
    errors = {s.name: s.errors[-1] for s in scores if s.errors}
    data = {"unit": unit, "contestants": {s.name: s.rounds for s in scores}}
    Paper(name, title, about, where, race_columns(unit), race_rows(scores), verdicts, data, errors, quick).write()
    ran = sorted((s for s in scores if s.values("rate")), key=lambda s: s.median("rate") or 0.0)
    if ran:
        _race_picture(name, title, unit, ran, quick)


def _race_picture(name: str, title: str, unit: str, ran: Sequence[Score], quick: bool) -> None:
    plt = plotter()
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 0.6 + 0.42 * len(ran)), width_ratios=(3, 2), sharey=True)
    names = [s.name for s in ran]
    colours = ["#1f6feb" if n.startswith("penstock") else "#9aa4b2" for n in names]
    rates = [s.median("rate") or 0.0 for s in ran]
    spread = [
        [rate - min(s.values("rate")) for s, rate in zip(ran, rates)],
        [max(s.values("rate")) - rate for s, rate in zip(ran, rates)],
    ]
    left.barh(names, rates, color=colours, xerr=spread, error_kw={"ecolor": "#333333", "lw": 1})
    left.set_xlabel(f"{unit} a second (median, whiskers: min and max)")
    right.barh(names, [s.median("growth_mb") or 0.0 for s in ran], color=colours)
    right.set_xlabel("memory growth over the imports, MB")
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
        axis.xaxis.set_major_locator(plt.MaxNLocator(5))
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    figure.suptitle(title, fontsize=10)
    save(figure, name, quick)


def plotter() -> Any:
    """Matplotlib without a screen."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def save(figure: Any, name: str, quick: bool) -> None:
    """Write a picture and forget it."""
    figure.tight_layout()
    figure.savefig(folder_for(quick) / f"{name}.png", dpi=110)
    plotter().close(figure)


def write_summary(quick: bool) -> str:
    """All targets of all results there are, in one table."""
    rows = []
    for path in sorted(folder_for(quick).glob("*.json")):
        told = json.loads(path.read_text())
        if not isinstance(told, dict) or "verdicts" not in told:
            continue
        date = told["machine"]["date"]
        rows += [[f"[{told['name']}]({told['name']}.md)", v["target"], v["found"], v["verdict"], date]
                 for v in told["verdicts"]]  # fmt: skip
    text = "# Targets\n\nWritten by `make bench`.\n\n"
    text += table(("benchmark", "target", "found", "verdict", "measured"), rows)
    (folder_for(quick) / "summary.md").write_text(text)
    return text
