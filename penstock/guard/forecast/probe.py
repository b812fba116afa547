"""Sending a model to a process of its own, and listening to what that finds.

Covers: packing model and example batch, the child's surroundings, its room, its findings as they come, its death.
Does not cover: what the child does (child.py), what the findings mean (forecast.py).
"""

from __future__ import annotations

import json
import os
import pickle
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from penstock.core.errors import InvalidInput, MissingExtra, PenstockError
from penstock.guard.forecast.build import split_name
from penstock.guard.malloc_env import STEADY
from penstock.memory.cgroups import read_counters
from penstock.memory.limits import find_limit
from penstock.memory.meter import Meter

SHARE = 0.7
"""Of what is free here, the share that a probe may fill."""
Finding = dict[str, Any]


class ForecastFailed(PenstockError):
    """The probing process ended before it could tell enough. `said` is the end of what it wrote."""

    def __init__(self, why: str, said: str) -> None:
        self.why, self.said = why, said
        super().__init__(f"The forecast's probe {why}. It said last: {said or 'nothing'}")


def run_probe(
    model: Any, spec: Mapping[str, Any], example: Any, *, timeout_s: float, heard: Callable[[Finding], None]
) -> list[Finding]:
    """Probe a model in a child process; `heard` is called with each finding when it comes."""
    with tempfile.TemporaryDirectory(prefix="penstock-forecast-") as name:
        folder = Path(name)
        env = {**os.environ, **STEADY, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        env.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        env.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads that spin cost seconds on a busy machine
        kind, surroundings = _pack(model, spec, folder)
        env |= surroundings
        if example is not None:
            (folder / "example.pickle").write_bytes(pickle.dumps(example))
        room = int(spec.get("room") or free_here() * SHARE)
        (folder / "spec.json").write_text(json.dumps({**spec, **kind, "room": room}))
        return _listen(folder, env, timeout_s, heard)


def free_here() -> int:
    """Bytes that a new process could take without anyone being killed."""
    counters = read_counters()
    used = max(Meter().read().nbytes, counters.anon if counters is not None else 0)
    left = find_limit().nbytes - used
    meminfo = Path("/proc/meminfo")
    lines = meminfo.read_text().splitlines() if meminfo.exists() else []
    available = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return max(0, min([left, *available]))


def framework_of(model: object) -> str:
    """'keras' or 'torch', without importing either."""
    packages = {kind.__module__.partition(".")[0] for kind in type(model).__mro__}
    for name in ("keras", "torch"):  # a Keras model on the torch backend is a torch module as well
        if name in packages:
            return name
    raise InvalidInput(
        f"forecast() takes a Keras model, a torch module or 'module.py:build', not a {type(model).__name__}."
    )


def _pack(model: Any, spec: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Leave the model in the folder; returns what the child must know and its environment."""
    optimizer, loss = spec.pop("optimizer", None), spec.pop("loss", None)  # type: ignore[attr-defined]
    backend = {"KERAS_BACKEND": spec["backend"]} if spec["backend"] else {}
    if isinstance(model, str):
        if optimizer is not None or loss is not None:
            raise InvalidInput(
                "A function that builds the model says its loss and optimizer: return (model, loss, optimizer)."
            )
        path, function = split_name(model)
        return {"kind": "file", "file": str(path), "function": function}, backend
    name = framework_of(model)
    try:
        if name == "keras":
            from penstock.guard.keras.forecast import pack_keras as pack
        else:
            from penstock.guard.torch.forecast import pack_torch as pack
    except ImportError as error:
        raise MissingExtra(what="forecast()", extra=name) from error
    return {"kind": name}, {**pack(model, folder, optimizer=optimizer, loss=loss), **backend}


def _listen(folder: Path, env: Mapping[str, str], timeout_s: float, heard: Callable[[Finding], None]) -> list[Finding]:
    findings: list[Finding] = []
    with open(folder / "said.txt", "w+b") as said, _started(folder, env, said) as (process, pipe):
        end_s = time.monotonic() + timeout_s
        for finding in _lines(pipe, end_s):
            findings.append(finding)
            heard(finding)
        code = _code(process, end_s)
        why = f"took longer than {timeout_s:.0f} s" if code is None else _ending(code)
        said.seek(0)
        findings.append({"kind": "ended", "why": why, "said": _last_lines(said.read().decode(errors="replace"))})
    return findings


def _code(process: subprocess.Popen[bytes], end_s: float) -> int | None:
    """The code with which the child ends; None if it had to be stopped.

    Its end of the pipe closes a moment before it is gone: a framework takes a while to shut down.
    """
    try:
        return process.wait(max(0.0, end_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


@contextmanager
def _started(folder: Path, env: Mapping[str, str], said: IO[bytes]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "penstock.guard.forecast.child", str(folder), str(writing)],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            pass_fds=(writing,),
        )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    try:
        _choose_first(process.pid)
        yield process, reading
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(reading)


def _choose_first(pid: int) -> None:
    """If memory runs out in spite of all, the kernel should take the probe and not the job beside it."""
    try:
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
    except OSError:
        return  # not on this system, or the child is gone already: nothing depends on it


def _lines(pipe: int, end_s: float) -> Iterator[Finding]:
    """Findings until the child closes its end or time is up."""
    buffer = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while (left_s := end_s - time.monotonic()) > 0:
            if not selector.select(left_s):
                return
            piece = os.read(pipe, 65536)
            if not piece:
                return
            *lines, buffer = (buffer + piece).split(b"\n")
            yield from map(json.loads, lines)


def _ending(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"


def _last_lines(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-600:]
