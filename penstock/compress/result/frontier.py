"""What a search tried, and the best of it.

Covers: trials, which of them no other beats, the table and a plot (SVG, written by hand: no plotting package needed).
Does not cover: choosing what to try (search.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from penstock.compress.child.probe import ModelFacts
from penstock.compress.recipe import Recipe, SizeTarget
from penstock.core.sizes import size


@dataclass(frozen=True)
class Trial:
    """One combination: what it measured, or why it was not trained."""

    recipe: Recipe
    facts: ModelFacts | None
    meets: bool
    why: str = ""


def best(trials: Sequence[Trial]) -> Trial | None:
    """The trial that meets the target with the best held-out score; the smaller file breaks a tie."""
    fit = [t for t in trials if t.meets and t.facts is not None and t.facts.score is not None]
    return max(fit, key=_rank, default=None)


def _rank(trial: Trial) -> tuple[float, int]:
    facts = trial.facts
    return (facts.score.merit, -facts.file_nbytes) if facts and facts.score else (float("-inf"), 0)


def unbeaten(trials: Sequence[Trial]) -> list[Trial]:
    """Trials that no other one equals or beats in both file size and score."""
    scored = sorted((t for t in trials if t.facts and t.facts.score), key=lambda t: (_size(t), -_rank(t)[0]))
    front: list[Trial] = []
    for trial in scored:
        if not front or _rank(trial)[0] > _rank(front[-1])[0]:
            front.append(trial)
    return front


def _size(trial: Trial) -> int:
    return trial.facts.file_nbytes if trial.facts else 0


def frontier_rows(trials: Sequence[Trial]) -> list[list[str]]:
    """The table of a search, largest file first; a star marks trials that no other beats."""
    front = {id(trial) for trial in unbeaten(trials)}
    table = [["", "recipe", "file", "peak, inference", "held out", "meets the target"]]
    for trial in sorted(trials, key=_size, reverse=True):
        facts = trial.facts
        peak = facts.inference_nbytes if facts else None
        table.append([
            "*" if id(trial) in front else "", str(trial.recipe), size(facts.file_nbytes) if facts else "not written",
            size(peak) if peak is not None else "not measured",
            f"{facts.score.value:.4f}" if facts and facts.score else "not trained",
            "yes" if trial.meets else f"no{': ' + trial.why if trial.why else ''}",
        ])  # fmt: skip
    return table


def plot(trials: Sequence[Trial], target: SizeTarget) -> str:
    """What the target bounds (file, else peak memory) against held-out score as an SVG picture.

    The line joins trials that no other one beats in file size and score.
    """
    peak = target.to is None and target.peak is not None
    points = [(_bounded(t.facts, peak), t.facts.score.value, t) for t in trials if t.facts and t.facts.score]
    if not points:
        return ""
    wide, high, edge = 640, 360, 60
    goal = target.peak if peak else target.to
    xs = [x for x, _, _ in points] + ([goal] if goal else [])
    ys = [y for _, y, _ in points]
    span_x, low, span_y = max(xs) * 1.05, min(ys), max(max(ys) - min(ys), 1e-6)

    def at(x: float, y: float) -> tuple[float, float]:
        return edge + x / span_x * (wide - 2 * edge), high - edge - (y - low) / span_y * (high - 2 * edge)

    front = [at(_bounded(t.facts, peak), t.facts.score.value) for t in unbeaten(trials) if t.facts and t.facts.score]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in sorted(front))
    title = "peak memory of inference" if peak else "file size"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" font-size="11" font-family="sans">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<polyline points="{path}" fill="none" stroke="#4477aa"/>',
        f'<text x="{wide / 2}" y="{high - 12}" text-anchor="middle">{title} (0 to {size(span_x)})</text>',
        f'<text x="14" y="{edge - 20}">held-out score ({min(ys):.4f} to {max(ys):.4f})</text>',
    ]
    if goal:
        x, _ = at(goal, low)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{edge}" y2="{high - edge}" stroke="#cc3311"/>')
        parts.append(f'<text x="{x + 4:.1f}" y="{edge - 4}" fill="#cc3311">target {size(goal)}</text>')
    return "\n".join([*parts, *(_dot(*at(x, y), x, t) for x, y, t in points), "</svg>"])


def _bounded(facts: ModelFacts | None, peak: bool) -> int:
    if facts is None:
        return 0
    return (facts.inference_nbytes or 0) if peak else facts.file_nbytes


def _dot(x: float, y: float, nbytes: int, trial: Trial) -> str:
    value = trial.facts.score.value if trial.facts and trial.facts.score else 0.0
    label = escape(f"{trial.recipe}: {size(nbytes)}, {value:.4f}")
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{"#228833" if trial.meets else "#bbbbbb"}"/>\n'
        f'<text x="{x + 6:.1f}" y="{y - 6:.1f}">{label}</text>'
    )
