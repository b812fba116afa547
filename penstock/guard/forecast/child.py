"""The process in which a model is probed: `python -m penstock.guard.forecast.child FOLDER FD`.

Covers: real guarded steps at a few sizes in each setting, their peaks, told line by line as they are known.
Does not cover: starting it (probe.py), drawing conclusions (forecast.py).

A size's cost is its peak above what was held before its steps, when it had run once: programs that a compiler makes
for each shape, and the heap that compiling leaves behind, are not charged to it. The base has both, for one shape.
Where the framework keeps the memory of a step for the next one (TensorFlow's pools for oneDNN), a step would show only
what it takes beyond the largest before it: what is free in the pools is filled up first, and let go afterwards.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.core.errors import InvalidInput, PenstockError
from penstock.core.user.code import in_one_line
from penstock.guard.forecast.curve import STEPS, Means, Tried, next_rows
from penstock.guard.forecast.peak import Peak, held_nbytes
from penstock.guard.forecast.result import Setting
from penstock.guard.forecast.subject import Maker, Phases, Subject, tree_nbytes
from penstock.guard.recovery.classify import classify
from penstock.guard.recovery.free_memory import release
from penstock.guard.recovery.microbatch import Part, split

Tell = Callable[..., None]
LOWER = "mixed_bfloat16"
FIRST_SHARE = 0.7
"""Share of the time for the setting that will most likely run; the other one is for comparison."""
FOLLOW_S = 0.5
SETTLE_S = 0.05
"""XLA frees a program's buffers a moment after its results are there."""
REPEATS = 3
SLOW_S = 2.0
"""CPU seconds of steps after which one size is not repeated any more."""
DIVIDED = 2
"""Sizes at which a split step is measured too."""


def main(folder: str, fd: str, change: str = "") -> int:
    """Probe what the folder describes; every finding is a line of JSON on the file descriptor.

    `change` is given by a probe that leaves one more setting to a process of its own: what is other there.
    """
    spec = json.loads(Path(folder, "spec.json").read_text()) | {"folder": folder, "fd": int(fd)}
    spec |= json.loads(change or "{}")
    threading.Thread(target=_follow, args=(os.getppid(),), daemon=True, name="penstock-follow").start()
    with os.fdopen(int(fd), "w") as pipe:

        def tell(kind: str, **values: Any) -> None:
            pipe.write(json.dumps({"kind": kind, **values}) + "\n")
            pipe.flush()

        try:
            run(make_maker(Path(folder), spec), spec, tell)
        except Exception as error:
            text, invalid = _failure(error)
            if change:
                tell("note", text=text)
                return 0
            tell("failed", text=text, invalid=invalid)
            return 1
        if not change:
            tell("done")
    return 0


def _failure(error: Exception) -> tuple[str, bool]:
    """What to tell about a probe that failed, and whether the call or the model is to blame."""
    if isinstance(error, PenstockError):
        return str(error), isinstance(error, ValueError)
    if classify(error) is not None:
        return f"memory ran out: {in_one_line(error)}", False
    return f"The model failed on the example batch: {in_one_line(error)}", True


def make_maker(folder: Path, spec: dict[str, Any]) -> Maker:
    """The framework's way of making the model; frameworks are imported here, once it is known which."""
    if spec["kind"] == "file":
        from penstock.guard.forecast.build import built_maker

        return built_maker(folder, spec)
    if spec["kind"] == "keras":
        from penstock.guard.keras.forecast import packed_keras

        return packed_keras(folder, spec)
    from penstock.guard.torch.forecast import packed_torch

    return packed_torch(folder, spec)


def run(maker: Maker, spec: dict[str, Any], tell: Tell) -> None:
    """Probe the first setting, then the others that are to be compared; one of these that fails is only noted."""
    means = Means(spec["top"], spec["room"], spec["seconds"] * (1.0 if spec["precision"] else FIRST_SHARE))
    own, keeps = settle(maker, spec["precision"], spec, means, tell)
    if spec["precision"] is None and own != LOWER:
        rest = spec["seconds"] * (1 - FIRST_SHARE)
        if keeps:
            elsewhere(spec, {"precision": LOWER, "seconds": rest}, LOWER, tell)
            return
        with _noting(LOWER, tell):
            settle(maker, LOWER, spec, replace(means, seconds=rest), tell)


def elsewhere(spec: dict[str, Any], change: dict[str, Any], what: str, tell: Tell) -> None:
    """Probe one more setting in a fresh process: here it would hide in what the framework keeps of the settings before.

    An instruction that this processor does not have, or the kernel, may end that process; the rest still counts.
    """
    words = [sys.executable, "-W", "ignore", "-m", "penstock.guard.forecast.child"]
    done = subprocess.run(
        [*words, spec["folder"], str(spec["fd"]), json.dumps(change)], pass_fds=(spec["fd"],), check=False
    )
    if done.returncode:
        how = f"was killed by signal {-done.returncode}" if done.returncode < 0 else f"ended with {done.returncode}"
        tell("note", text=f"{what} could not be tried: its probe {how}.")


def settle(maker: Maker, precision: str | None, spec: dict[str, Any], means: Means, tell: Tell) -> tuple[str, bool]:
    """Probe one precision, without and with rematerialisation as asked.

    Returns what precision it was, and whether the framework keeps memory.
    """
    remat = bool(spec["remat"])
    subject = maker.make(Setting(precision or "", remat))
    if subject is None:
        raise InvalidInput("Nothing in this model can be rematerialised.")
    setting = Setting(subject.precision, remat)
    tell("subject", who=subject.who, framework=subject.framework, row=row_nbytes(subject))
    rows = probe(subject, setting, spec, means, tell)
    keeps = subject.keeps
    if spec["remat"] is None and keeps:
        what = {"precision": setting.precision, "remat": True, "seconds": means.seconds}
        del subject
        release()
        elsewhere(spec, what, str(Setting(setting.precision, True)), tell)
    elif spec["remat"] is None:
        with _noting(str(Setting(setting.precision, True)), tell):
            planned = subject.compiled(rows)
            del subject  # two models at once may be one too many
            release()
            compare_remat(maker, setting, planned, rows, spec, means, tell)
    return setting.precision, keeps


def compare_remat(
    maker: Maker, plain: Setting, planned: float | None, rows: int, spec: dict[str, Any], means: Means, tell: Tell
) -> None:
    """Rematerialisation: by the compiler's account of both programs where it gives one, else by probes."""
    subject = maker.make(Setting(plain.precision, True))
    if subject is None:
        tell("note", text="Nothing in this model can be rematerialised.")
        return
    with_remat = None if planned is None else subject.compiled(rows)
    if planned and with_remat is not None:
        tell("ratio", precision=plain.precision, remat=plain.remat, ratio=with_remat / planned)
    else:
        probe(subject, Setting(plain.precision, True), spec, means, tell)


@contextmanager
def _noting(what: str, tell: Tell) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever a framework raises for a setting that it does not support
        tell("note", text=f"{what} could not be tried: {in_one_line(error)}")


def row_nbytes(subject: Subject) -> int:
    """What one row of a batch takes."""
    return tree_nbytes(subject.batch(8)) // 8


def probe(subject: Subject, setting: Setting, spec: dict[str, Any], means: Means, tell: Tell) -> int:
    """Measure one setting: sizes until enough is known, an evaluation, a save; returns the largest size."""
    about = {"precision": setting.precision, "remat": setting.remat}
    _warm(subject)
    base = _rest()
    tell("base", **about, nbytes=base, state=dict(subject.state()))
    # What fills the pools stands beside the step.
    means = replace(means, room=(means.room - base) / (2 if subject.keeps else 1))
    tried: list[Tried] = []
    while (rows := next_rows(tried, means)) is not None:
        start_s = time.perf_counter()
        found = measure(subject, rows, divided=len(tried) < DIVIDED)
        if not tried:
            found["evaluate"] = measure_evaluation(subject, rows)
        elif subject.keeps:  # what a larger part's gradients took is still held, and would pass for the optimizer's
            found.pop("apply", None)
        # Of the CPU time only that of steps: it is what grows with the rows.
        tried.append(Tried(rows, found["whole"], STEPS * found["step_s"], found["step_s"]))
        tell("point", **about, rows=rows, **found, base=base, seconds=time.perf_counter() - start_s)
    last = tried[-1].rows
    if len(tried) > 1:
        tell("evaluation", **about, rows=last, nbytes=measure_evaluation(subject, last))
    tell("save", **about, nbytes=measure_save(subject))
    if last * 2 < spec["batch"]:
        pair = subject.compiled(last), subject.compiled(spec["batch"])
        if None not in pair:
            tell("compiled", **about, rows=spec["batch"], at_last=pair[0], at_rows=pair[1])
    return last


def measure(subject: Subject, rows: int, *, divided: bool = True) -> dict[str, float]:
    """What a whole and a split step take with parts of so many rows, above what is held between steps.

    A split step shows what the sums cost, which does not depend on the rows: large sizes go without. Where a whole step
    is one call, it has the gradients' peak, and what the optimizer takes alone is seen in the split step.
    """
    parts = list(split(subject.batch(rows * (2 if divided else 1)), rows))
    whole = [Part(parts[0].data, 0, rows, 1.0)]
    _step(subject.train, whole)  # the first step at a size also compiles for it, and may not show its peak
    peaks: list[tuple[float, float]] = []
    times: list[float] = []
    while not times or (len(times) < REPEATS and sum(times) < SLOW_S):
        gradients, apply, seconds = _above_rest(subject, subject.train, whole)
        peaks.append((max(gradients, apply) if subject.at_once else gradients, apply))
        times.append(seconds)
    found = {"whole": max(gradients for gradients, _ in peaks), "step_s": statistics.median(times)}
    if not subject.at_once:
        found["apply"] = statistics.median(apply for _, apply in peaks)
    if divided and subject.at_once:
        _step(subject.train, parts)  # parts have a program of their own, which is compiled here
        found["split"], found["apply"], _ = _above_rest(subject, subject.train, parts)
    elif divided:
        found["split"] = _above_rest(subject, subject.train, parts)[0]
    del parts, whole
    release()
    return found


def measure_evaluation(subject: Subject, rows: int) -> float:
    """What an evaluation of so many rows takes."""
    parts = list(split(subject.batch(rows), rows))
    _step(subject.evaluate, parts)
    return _above_rest(subject, subject.evaluate, parts)[0]


def _above_rest(subject: Subject, stepper: Phases, parts: Sequence[Part]) -> tuple[int, int, float]:
    """Peaks of the gradients and of the optimizer's step above what is held between steps, and CPU seconds.

    The batch is in what is held.
    """
    filling = subject.fill()
    rest = _rest(trimmed=True)
    start_s = time.process_time()
    gradients, apply = _step(stepper, parts)
    seconds = time.process_time() - start_s
    del filling
    return gradients - rest, apply - rest, seconds


def measure_save(subject: Subject) -> float:
    """Peak of writing a checkpoint."""
    with tempfile.TemporaryDirectory(prefix="penstock-forecast-") as folder:
        before = held_nbytes()
        with Peak() as peak:
            subject.save(Path(folder, "checkpoint"))
    return peak.nbytes - before


def _follow(parent: int) -> None:
    """End when the parent is gone: there is no one left to report to."""
    while os.getppid() == parent:
        time.sleep(FOLLOW_S)
    os._exit(1)


def _warm(subject: Subject) -> None:
    """Let optimizer state, copies and thread pools come to be: they are there in all later steps."""
    parts = list(split(subject.batch(1), 1))
    for _ in range(3):
        _step(subject.train, parts)


def _rest(*, trimmed: bool = False) -> int:
    """What is held between steps: as in a training process, or without the free heap, in which small tensors hide."""
    gc.collect()
    time.sleep(SETTLE_S)
    if trimmed:
        release()
    return held_nbytes()


def _step(stepper: Phases, parts: Sequence[Part]) -> tuple[int, int]:
    """Peaks of the gradients of all parts and of the optimizer's step."""
    with Peak() as gradients:
        stepper.begin(parts)
        for part in parts:
            stepper.part(part)
    with Peak() as apply:
        stepper.prepare()
        stepper.apply()
    return gradients.nbytes, apply.nbytes


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
