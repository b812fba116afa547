"""The measurements for people and for programs.

Covers: the text that `penstock bench` prints, and the JSON.
Does not cover: pictures (plot.py), the verdict (verdict.py).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from penstock.bench.facts import Facts, Flow
from penstock.bench.verdict import Verdict, describe
from penstock.core.sizes import size


def text(facts: Facts, verdict: Verdict) -> str:
    """All of it, the verdict first."""
    parts = [verdict.sentence, "", *_about(facts), "", *_stages(facts, verdict), "", *_stalls(facts, verdict)]
    parts += ["", "Against this machine's limits:", *_distances(facts, verdict)]
    if facts.trials:
        parts += ["", "Tried on a sample:", *(f"  {describe(trial)}" for trial in facts.trials)]
    parts += ["", *(f"-> {line}" for line in verdict.advice)]
    parts += [f"Note: {note}" for note in facts.notes]
    return "\n".join(parts).rstrip()


def to_json(facts: Facts, verdict: Verdict) -> dict[str, Any]:
    """Facts and verdict as plain values, with the rates that follow from them."""
    flows = {name: getattr(facts, name) for name in ("synthetic", "cached", "cold", "free", "free_cold")}
    rates = {name: None if flow is None else flow.rate for name, flow in flows.items()}
    waited = {name: None if flow is None else flow.waited for name, flow in flows.items()}
    return {
        "facts": asdict(facts), "rows_per_s": rates, "waited": waited,
        "gains": {trial.name: trial.gain for trial in facts.trials},
        "verdict": {**asdict(verdict), "sentence": verdict.sentence},
    }  # fmt: skip


def _about(facts: Facts) -> list[str]:
    s = facts.sample
    rows = "an unknown number of rows" if s.rows is None else f"{s.rows:,} rows"
    stored = "" if s.nbytes is None else f", {size(s.nbytes)}"
    step = f"a consumer of {s.step_s * 1e3:g} ms a batch" if s.step_s else "no consumer"
    function = f", through {s.function}" if s.function else ""
    return [
        f"{s.source}: {rows}{stored} ({s.kind}); batches of {s.batch}{function}; {step}; {facts.limits.cores} cores."
    ]


def _stages(facts: Facts, verdict: Verdict) -> list[str]:
    limits, caps, database = facts.limits, verdict.capacities, verdict.database
    whence = "from the database, nothing done with its rows" if database else "from these files, cold"
    said = {
        "storage": "" if limits.read_cold is None else f"{size(limits.read_cold)}/s {whence}",
        "decode": f"all {limits.cores} cores, bytes at hand",
        "function": facts.sample.function,
        "consumer": f"{facts.sample.step_s * 1e3:g} ms a batch",
    }
    lines = ["Each stage alone, rows/s:"]
    for name, note in said.items():
        if name in caps:
            mark = "  <- the bottleneck" if name == verdict.bottleneck else ""
            shown = "database" if database and name == "storage" else name
            lines.append(f"  {shown:<10}{caps[name]:>14,.0f}   {note}{mark}")
    near, far = ("rows at hand", "rows from the database") if database else ("files in memory", "files on storage")
    lines.append(f"  {'together':<10}{facts.free.rate:>14,.0f}   the pipeline, no consumer, {near}")
    if facts.free_cold is not None:
        lines.append(f"  {'':<10}{facts.free_cold.rate:>14,.0f}   the same, {far}")
    return lines


def _stalls(facts: Facts, verdict: Verdict) -> list[str]:
    def line(name: str, flow: Flow | None) -> str:
        if flow is None:
            return f"  {name:<10}      not measured"
        return f"  {name:<10}{flow.rate:>14,.0f} rows/s   waits {flow.waited:6.1%}"

    lines = ["With the consumer:"]
    near, far = ("at hand", "database") if verdict.database else ("cached", "cold")
    lines += [line("synthetic", facts.synthetic), line(near, facts.cached), line(far, facts.cold)]
    lines.append(
        f"  waiting a row: {_microseconds(verdict.prepare_stall_us)} for preparing, "
        f"{_microseconds(verdict.fetch_stall_us)} for {'the database' if verdict.database else 'storage'}"
    )
    return lines


def _distances(facts: Facts, verdict: Verdict) -> list[str]:
    limits, sample, rate = facts.limits, facts.sample, facts.free.rate
    lines = [f"  compute  {verdict.reached['compute']:7.1%} of what the cores prepare when they do nothing else"]
    if "disk" in verdict.reached and verdict.database and facts.free_cold is not None:
        share = facts.free_cold.rate / verdict.capacities["storage"]
        lines.append(f"  database {share:7.1%} of what it gives when nothing is done with its rows")
    elif "disk" in verdict.reached and sample.row_stored:
        share = verdict.reached["disk"]
        told = f"{share:7.1%}" if share <= 1 else "files in memory:"  # which give more than the disk could
        lines.append(
            f"  disk     {told} ({size(rate * sample.row_stored)}/s of {size(limits.read_cold or 0)}/s cold, "
            f"{size(limits.read_warm or 0)}/s from memory)"
        )
    lines.append(
        f"  memcpy   {verdict.reached['memcpy']:7.1%} ({size(rate * sample.row_nbytes)}/s of {size(limits.memcpy)}/s)"
    )
    lines.append(f"  processor time {_microseconds(facts.free.cpu_us)} a row")
    return lines


def _microseconds(us: float) -> str:
    """Rows of tables take less than one."""
    return f"{us:,.0f} us" if us >= 10 or us == 0 else f"{us:.2g} us"
