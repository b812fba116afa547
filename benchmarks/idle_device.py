"""Does a device wait? A consumer that sleeps per batch, so that the data side needs 70 % of the machine.

Covers: penstock, tf.data and torch DataLoader on the pictures of images.py.
Does not cover: real accelerators. Each child first measures its own free rate, then sets the step by it.
"""

from __future__ import annotations

from typing import Any

from benchmarks.images import BATCH, SIDE, penstock, tf_data, torch_opencv

LOAD, LIMIT = 0.7, 0.03
CONTESTANTS = {
    "files": {"penstock": penstock, "tf.data AUTOTUNE": tf_data, "torch DataLoader OpenCV": torch_opencv},
}


def run(options: Any) -> None:
    """Measure in turns, judge, write."""
    from benchmarks import data, pictures, report
    from benchmarks.harness import Race, race

    where = report.machine()
    path = data.images(64 if options.quick else 1000)
    names = list(CONTESTANTS["files"])
    more = {"load": LOAD, "idle_s": 1.0 if options.quick else 6.0}
    shape = (BATCH, SIDE, SIDE, 3)
    plan = Race(
        __name__,
        "files",
        str(path),
        names,
        shape,
        "uint8",
        options.turns(3),
        measure="idle",
        more=more,
        **pictures.times(options),
    )
    scores = race(plan)
    found = scores[0].median("waited")
    target = f"`penstock`: the consumer waits <= {LIMIT:.0%} of the time after the first batch"
    shown = "failed" if found is None else f"{found:.2%}"
    verdicts = [report.Verdict(target, shown, found is not None and found <= LIMIT)]
    _write(options, scores, verdicts, where)


def _write(options: Any, scores: Any, verdicts: Any, where: dict[str, Any]) -> None:
    from benchmarks import report

    rows = []
    for score in scores:
        waited = score.values("waited")
        if not waited:
            rows.append([score.name, "failed", "", "", "", ""])
            continue
        rows.append([
            score.name, f"{score.median('waited'):.2%}", f"{min(waited):.2%}-{max(waited):.2%}",
            f"{score.median('longest_ms'):.0f}", f"{score.median('step_ms'):.1f}", f"{score.median('rate'):,.0f}",
        ])  # fmt: skip
    about = (
        "Pictures as in the images benchmark. The consumer sleeps after each batch for 32 / (free rate x 0.7), "
        "where the free rate is what the same loader delivered without a step a moment before in the same process."
    )
    columns = ("loader", "time waited, median", "min-max", "longest wait ms", "step ms", "free rate images/s")
    errors = {s.name: s.errors[-1] for s in scores if s.errors}
    data = {"contestants": {s.name: s.rounds for s in scores}}
    title = "No idle device: data needs 70 % of the machine"
    report.Paper("idle_device", title, about, where, columns, rows, verdicts, data, errors, options.quick).write()
    ran = [s for s in scores if s.values("waited")]
    plt = report.plotter()
    figure, axis = plt.subplots(figsize=(7, 2.4))
    colours = ["#1f6feb" if s.name == "penstock" else "#9aa4b2" for s in ran]
    axis.barh([s.name for s in ran], [s.median("waited") * 100 for s in ran], color=colours)
    axis.axvline(LIMIT * 100, color="#c33", lw=1, ls="--")
    axis.set_xlabel("share of the time the consumer waited, % (dashed: target)")
    axis.set_title(title, fontsize=10)
    report.save(figure, "idle_device", options.quick)
