"""What recording takes from a run, and how long the report of a very long run takes to open.

Covers: one Keras training job in fresh processes, recorded and not recorded in turns; processor time inside the
recorder; a report of a million steps in a real Chromium.
Does not cover: the live page's server, which is a process of its own.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SHARE, OPENS_S = 0.01, 2.0
JOB = "benchmarks.recording_cost_job"


def run(options: Any) -> None:
    """Measure in turns, judge, write."""
    from benchmarks import report

    where = report.machine()
    seconds = 2.0 if options.quick else 10.0
    with tempfile.TemporaryDirectory(prefix="penstock-recording-") as folder:
        rounds = [_round(Path(folder), turn, seconds) for turn in range(options.turns(3))]
        opened = _open_report(Path(folder), 10_000 if options.quick else 1_000_000)
    share = statistics.median(found["on"]["share"] for found in rounds)
    ratios = [found["on"]["step_cpu_s"] / found["off"]["step_cpu_s"] for found in rounds]
    verdicts = [
        report.Verdict(f"events and samples take < {SHARE:.0%} of a run's time", f"{share:.3%}", share < SHARE),
        _verdict(opened),
    ]
    rows = [
        ["processor time inside the recorder, share of the run's time", _spread([r["on"]["share"] for r in rounds])]
    ]
    rows += [["processor time of a step, recorded / not recorded", _span(ratios, "{:.3f}")]]
    rows += [["events and samples written a second", _span([r["on"]["lines_per_s"] for r in rounds], "{:.1f}")]]
    rows += [["bytes written a second", _span([r["on"]["bytes_per_s"] for r in rounds], "{:,.0f}")]]
    rows += [[name, shown] for name, shown in _report_rows(opened)]
    about = (
        f"A Keras model on TensorFlow learns from 200,000 rows of 40 numbers through `ps.fit` for {seconds:.0f} s, in "
        "fresh processes, with and without `ps.record` in turns. The first row is measured inside the recorded process "
        "around every event heard and every memory sample, in processor time of the thread that does it; the second "
        "compares the two kinds of run and has the noise of both. The report is made from 1.5 events a step."
    )
    data = {"rounds": rounds, "report": opened}
    title = "What recording costs"
    paper = report.Paper(
        "recording_cost", title, about, where, ("measured", "median (min-max)"), rows, verdicts, data, {}, options.quick
    )
    paper.write()
    _picture(rounds, title, options.quick)


def _round(folder: Path, turn: int, seconds: float) -> dict[str, Any]:
    """The job once recorded and once not, in an order that changes from round to round."""
    order = ("on", "off") if turn % 2 == 0 else ("off", "on")
    found = {}
    for state in order:
        run_folder = folder / f"run-{turn}" if state == "on" else Path("-")
        argv = [sys.executable, "-m", JOB, str(run_folder), str(seconds)]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        found[state] = json.loads(done.stdout.splitlines()[-1])
        print(f"  round {turn + 1}, recording {state}: {found[state]}", flush=True)
    return found


def _open_report(folder: Path, steps: int) -> dict[str, Any]:
    """Write the events of a long run, make its report in a process of its own, open it in a browser."""
    from tests.integration.watch_browser import Browser, find_chromium
    from tests.unit.watch.runs import write_long_run

    events, page = write_long_run(folder / "long", steps), folder / "report.html"
    script = (
        "import resource, sys, time\n"
        "from penstock.watch.report import report_data, write_report\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "write_report(report_data(sys.argv[1]), sys.argv[2])\n"
        "print(time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(events.parent), str(page)], capture_output=True, text=True, check=True
    )
    made_s, grown_kb = (float(word) for word in done.stdout.split())
    found: dict[str, Any] = {"steps": steps, "events_nbytes": events.stat().st_size, "page_nbytes": page.stat().st_size}
    found |= {"made_cpu_s": made_s, "made_growth_mb": grown_kb / 1e3, "opened_s": []}
    if find_chromium() is None:
        return found
    with Browser() as browser:
        for _ in range(3):
            browser.open(page.as_uri())
            browser.wait("document.documentElement.dataset.drawn", 120)
            end_ms = browser.js("return performance.getEntriesByType('navigation')[0].loadEventEnd")
            found["opened_s"].append(end_ms / 1e3)
    return found


def _verdict(opened: dict[str, Any]) -> Any:
    from benchmarks import report

    target = f"the report of a run of {opened['steps']:,} steps opens in < {OPENS_S:.0f} s"
    if not opened["opened_s"]:
        return report.Verdict(target, "no browser here", None)
    slowest = max(opened["opened_s"])
    return report.Verdict(target, f"{slowest:.2f} s, the slowest of three", slowest < OPENS_S)


def _report_rows(opened: dict[str, Any]) -> list[tuple[str, str]]:
    size_mb, page_kb = opened["events_nbytes"] / 1e6, opened["page_nbytes"] / 1e3
    return [
        (f"report of {opened['steps']:,} steps ({size_mb:,.0f} MB of events): size", f"{page_kb:,.0f} KB"),
        (
            "making it: processor time, memory growth",
            f"{opened['made_cpu_s']:.1f} s, {opened['made_growth_mb']:.0f} MB",
        ),
        ("opening it in Chromium", _span(opened["opened_s"], "{:.2f} s") if opened["opened_s"] else "not measured"),
    ]


def _span(values: list[float], form: str) -> str:
    middle, low, high = (form.format(n) for n in (statistics.median(values), min(values), max(values)))
    return f"{middle} ({low}-{high})"


def _spread(values: list[float]) -> str:
    return _span(values, "{:.3%}")


def _picture(rounds: list[dict[str, Any]], title: str, quick: bool) -> None:
    from benchmarks import report

    figure, axis = report.plotter().subplots(figsize=(7, 1.8))
    shares = [found["on"]["share"] * 100 for found in rounds]
    axis.barh([f"round {turn + 1}" for turn in range(len(shares))], shares, color="#1f6feb")
    axis.axvline(SHARE * 100, color="#c33", lw=1, ls="--")
    axis.set_xlabel("processor time inside the recorder, % of the run's time (dashed: target)")
    axis.set_title(title, fontsize=10)
    report.save(figure, "recording_cost", quick)
