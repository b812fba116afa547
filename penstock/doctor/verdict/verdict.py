"""The verdict on one run.

Covers: joining ending, shape, holders, causes and probes into one value; the command that would have saved the job.
Does not cover: showing it (text.py, html.py).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.core.sizes import size
from penstock.doctor.evidence.read import Evidence, read_evidence
from penstock.doctor.verdict.ending import Ending
from penstock.doctor.verdict.facts import Clues
from penstock.doctor.verdict.rank import HALF, Ranked, rank, read_scripts
from penstock.doctor.verdict.resume import Resume, how_to_resume
from penstock.doctor.verdict.shape import Shape

MOST_CAUSES = 5
GROWING = 0.02
"""Share of the limit by which a container must grow to be reported."""


@dataclass(frozen=True)
class RunVerdict:
    """Everything that is reported about a run."""

    folder: Path
    command: list[str]
    ending: Ending
    phase: str
    step: int
    epoch: int
    shape: Shape
    limit: int
    limit_from: str
    holder: str
    causes: list[Ranked]
    lines: list[str]
    names: list[str]
    probes: list[str]
    points: list[tuple[float, int, str]]
    seconds: float
    save: str
    resume: Resume

    @property
    def memory(self) -> bool:
        """Whether the run ended for memory."""
        return self.ending.memory

    @property
    def doubt(self) -> str:
        """What is not certain about the first cause; empty if nothing is."""
        first = self.causes[0] if self.causes else None
        if first is not None and first.rival:
            return f"Not sure between two that fit: “{first.cause.title}” and “{first.rival}”."
        if first is not None and first.score >= 0.75 and first.part < HALF:
            return f"Not sure: the first cause accounts for {first.part:.0%} of what was taken."
        if first is not None and first.confidence == "low":
            return "Not sure: none of these explains the run by itself."
        return ""

    def as_json(self) -> dict[str, Any]:
        causes = [
            {
                "name": item.cause.name,
                "title": item.cause.title,
                "confidence": item.confidence,
                "score": round(item.score, 3),
                "shows": list(item.shows),
                "place": item.place,
                "nbytes": item.nbytes,
                "why": item.cause.why,
                "cure": item.cause.cure,
                "instead": item.cause.instead,
                "patch": bool(item.found and item.found.edits),
            }
            for item in self.causes
        ]
        return {
            "command": self.command,
            "ending": asdict(self.ending),
            "phase": self.phase,
            "step": self.step,
            "epoch": self.epoch,
            "shape": asdict(self.shape),
            "limit": self.limit,
            "limit_from": self.limit_from,
            "holder": self.holder,
            "causes": causes,
            "doubt": self.doubt,
            "grew_at": self.lines,
            "names": self.names,
            "probes": self.probes,
            "seconds": self.seconds,
            "save": self.save,
            "resume": asdict(self.resume),
        }


def judge(folder: Path) -> RunVerdict:
    """Read a run's evidence and judge it; needs nothing but the folder (and the script, to point at its lines)."""
    return judge_evidence(read_evidence(folder))


def judge_evidence(evidence: Evidence) -> RunVerdict:
    """A pure function of the evidence."""
    facts = Clues(evidence)
    scripts = read_scripts(facts)
    causes = rank(facts, scripts)[:MOST_CAUSES]
    last = facts.points[-1] if facts.points else None
    return RunVerdict(
        folder=evidence.folder,
        command=list(evidence.run["command"]),
        ending=facts.ending,
        phase=facts.phase,
        step=facts.count("step"),
        epoch=facts.count("epoch"),
        shape=facts.shape,
        limit=facts.limit,
        limit_from=str(evidence.run["limit_from"]),
        holder=_holder(facts),
        causes=causes,
        lines=[f"{item.place}: {size(item.nbytes)}" for item in facts.grown[:5] if item.nbytes > 0.03 * facts.limit],
        names=[f"{n.name} ({n.type}, {size(n.last)}) {n.detail}".strip() for n in facts.names[:5] if n.last > 1 << 20],
        probes=_probes(facts),
        points=[(p.t, p.used, p.phase) for p in facts.points],
        seconds=last.t if last else 0.0,
        save=_command(facts, causes),
        resume=Resume("", None, "") if facts.ending.kind == "finished" else how_to_resume(facts, scripts),
    )


def _holder(facts: Clues) -> str:
    """Which process held the most: often not the one that was killed."""
    if not facts.peaks:
        return ""
    pid = max(facts.peaks, key=lambda p: facts.peaks[p])
    who = "the main process" if pid == facts.main else f"worker {pid}"
    text = f"{who} held up to {size(facts.peaks[pid])}"
    others = [facts.peaks[p] for p in facts.workers]
    if pid == facts.main and others:
        text += f", its {len(others)} other process{'es' if len(others) > 1 else ''} up to {size(max(others))} each"
    if facts.ending.victims and pid not in facts.ending.victims:
        text += "; the process that was killed is not the one that held the memory"
    return text


def _probes(facts: Clues) -> list[str]:
    found = []
    for probe in facts.evidence.probes[-3:]:
        found.append(f"gc.collect gave back {size(probe['gc_gave'])} of {size(probe['before'])}")
        if probe.get("trim"):
            found.append(f"malloc_trim gave back {size(probe['trim_gave'])}")
    groups = [s["group"] for s in facts.evidence.samples if "group" in s]
    if groups and facts.evidence.run["limit_kept_by"] == "cgroup":
        top = max(groups, key=lambda g: int(g["usage"]))
        found.append(
            f"at the peak {size(top['anon'])} were anonymous, {size(top['file'])} cached files, "
            f"{size(top['shmem'])} shared"
        )
    if facts.workers:
        grown = max(high - first for first, high in facts.workers.values())
        found.append(
            f"workers grew by up to {size(grown)} each, the main process by {size(facts.main_grown)} since the "
            f"first of them; they held {facts.worker_share:.0%} of the peak"
        )
    traces = facts.count("traces")
    if traces:
        found.append(f"{traces} functions were traced or compiled")
    return found + _lengths(facts)


def _lengths(facts: Clues) -> list[str]:
    """Containers of the script from their first look to their last; those that grow, or that none does."""
    seen = [n for n in facts.names if n.first_len or n.last_len]
    growing = [n for n in seen if n.last_len > n.first_len and n.last - n.first > GROWING * facts.limit]
    if seen and not growing:
        return [f"none of {len(seen)} containers that were looked at grew notably"]
    return [f"{n.name} grew from {n.first_len:,} to {n.last_len:,} entries, to {size(n.last)}" for n in growing[:3]]


def _command(facts: Clues, causes: list[Ranked]) -> str:
    """The one command or call that would have saved the job."""
    command = " ".join(facts.evidence.run["command"])
    if not facts.ending.memory:
        return ""
    for item in causes[:1]:
        if item.found is not None and item.found.edits:
            return f"penstock doctor {item.place.rpartition(':')[0]} --fix"
        if item.cause.env:
            return " ".join(f"{k}={v}" for k, v in item.cause.env.items()) + f" {command}"
        if item.cause.instead:
            return item.cause.instead
    need = int(facts.shape.peak * 1.5)
    return f"penstock run --memory {size(need).replace(' ', '')} -- {command}"
