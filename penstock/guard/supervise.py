"""The parent that outlives its worker.

Covers: running a training command, noticing that it was killed or aborted for its memory, starting it again from its
last checkpoint with smaller micro-batches.
Does not cover: errors that Python can catch (guard/recovery/step.py), finding out why a job needs so much (doctor/).

The kernel's out-of-memory killer and the aborts of TensorFlow and JAX on CPU leave no exception to catch. A
worker that ends with SIGKILL is believed when the kernel's counter of kills has moved; SIGABRT and SIGSEGV are what a
failed allocation in a native thread looks like and are believed without it, a few times.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.core.errors import InvalidInput, OutOfMemory
from penstock.core.events import Event, events
from penstock.core.sizes import Size
from penstock.guard import supervisor_hints as hints
from penstock.guard.malloc_env import steady_environment
from penstock.guard.recovery import ladder as recover
from penstock.guard.recovery.microbatch import part_sizes
from penstock.memory.cgroups import read_counters
from penstock.memory.jail import run_limited

UNCONFIRMED = 3
"""Deaths in a row that are believed to be about memory without a counter that says so."""
EARLY = 3
"""Deaths in a row before a first step: beyond them, trying the same again is pointless."""
_THIS = [sys.executable, "-c", "import sys; from penstock.guard.supervise import main; sys.exit(main(sys.argv[1:]))"]
DEADLY = {-signal.SIGKILL: "SIGKILL", -signal.SIGABRT: "SIGABRT", -signal.SIGSEGV: "SIGSEGV", -signal.SIGBUS: "SIGBUS"}


@dataclass
class Supervised:
    """How a supervised run ended: its exit code, and each death on the way."""

    returncode: int
    deaths: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Death:
    """One worker that died, and whether a counter says that memory was the reason."""

    name: str
    confirmed: bool


def supervise(
    command: Sequence[str] | Callable[[], Any],
    *,
    checkpoint: str | os.PathLike[str],
    memory: Size | None = None,
    max_restarts: int = 12,
    env: Mapping[str, str] | None = None,
) -> Supervised:
    """Run a command, or call a function in a fresh process, until it ends by itself.

    Its `fit` must be given the same `checkpoint` folder. `memory` limits the worker. Raises OutOfMemory when one sample
    at a time was still killed, or when it died `max_restarts` times.

    >>> supervise(["python", "train.py"], checkpoint="runs/first", memory="4GB")  # doctest: +SKIP
    """
    folder = Path(checkpoint)
    if callable(command):
        with _pickled(command) as argv:
            return _run(argv, folder, memory, max_restarts, env)
    return _run(list(command), folder, memory, max_restarts, env)


def become_supervisor(checkpoint: str | os.PathLike[str] | None) -> None:
    """Replace this process by a supervisor that runs the same script as its worker; in the worker, do nothing.

    Replaced, not forked: a parent that kept its framework and model in memory would take room from the worker.
    """
    if os.environ.get(hints.SUPERVISED) == "1":
        return
    if checkpoint is None:
        raise InvalidInput("supervise=True needs checkpoint=, the folder from which a killed run goes on.")
    if len(sys.orig_argv) < 2 or hasattr(sys, "ps1") or "ipykernel" in sys.modules:
        raise InvalidInput("supervise=True starts the script again, and there is no script here. Use supervise().")
    sys.stdout.flush()
    sys.stderr.flush()
    argv = [*_THIS, str(checkpoint), "--", sys.executable, *sys.orig_argv[1:]]
    os.execv(sys.executable, argv)


def _run(
    argv: list[str], folder: Path, memory: Size | None, max_restarts: int, env: Mapping[str, str] | None
) -> Supervised:
    result = Supervised(0)
    ladder: recover.Ladder | None = None
    unconfirmed = early = 0
    hints.forget_hint(folder)  # of an earlier run: it would be taken for this worker's first step
    while True:
        result.returncode, death = _run_once(argv, memory, _environment(env, ladder, bool(result.deaths)))
        if death is None:
            return result
        unconfirmed = 0 if death.confirmed else unconfirmed + 1
        result.deaths.append(death.name)
        if unconfirmed > UNCONFIRMED:
            return result
        hint = hints.read_hint(folder)
        early = early + 1 if hint is None else 0
        if early > EARLY:
            raise OutOfMemory(
                f"The worker was killed {early} times ({death.name}) before its first step, so no smaller micro-batch "
                f"can help: the model, its libraries or the preparation of the data need more memory than there is.",
                phase="forward",
                micro=0,
            )
        if len(result.deaths) > max_restarts:
            raise OutOfMemory(
                f"The worker died {len(result.deaths)} times ({death.name}); max_restarts is {max_restarts}.",
                phase="forward",
                micro=0 if ladder is None else ladder.micro,
            )
        ladder = _next(ladder, hint, death)


def _next(ladder: recover.Ladder | None, hint: dict[str, Any] | None, death: Death) -> recover.Ladder | None:
    """What the next worker should try, from what the last one said it was doing."""
    if hint is None:
        events.emit("guard.restart", "supervisor", death=death.name, micro=None, confirmed=death.confirmed)
        return ladder
    batch, micro = int(hint["batch"]), int(hint["micro"])
    ladder = ladder or recover.start(batch, micro=micro)
    failure = recover.Failure("forward", max(part_sizes(batch, micro)), f"the worker died of {death.name}")
    ladder, decision = recover.after_failure(ladder, failure, recover.Allowed())
    if decision.rung == "give up":
        raise OutOfMemory(decision.why, phase="forward", micro=micro)
    events.emit(
        "guard.restart", "supervisor", death=death.name, micro=ladder.micro, why=decision.why, confirmed=death.confirmed
    )
    return ladder


def _run_once(argv: list[str], memory: Size | None, env: dict[str, str]) -> tuple[int, Death | None]:
    if memory is not None:
        outcome = run_limited(argv, memory, env=env)
        code, killed = outcome.returncode, outcome.killed
    else:
        before = kills()
        code = _wait(subprocess.Popen(argv, env=env))
        killed = kills() > before
    name = DEADLY.get(code) or DEADLY.get(128 - code)
    return code, None if name is None else Death(name, killed)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for the worker; SIGTERM is passed on, so that it can save."""
    try:
        # The kernel should choose the worker, not the parent that can start it again.
        Path(f"/proc/{process.pid}/oom_score_adj").write_text("500")
    except OSError:
        events.emit("guard.oom_score", "supervisor", pid=process.pid, changed=False)
    before = signal.signal(signal.SIGTERM, lambda number, frame: process.send_signal(number))
    try:
        return process.wait()
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def kills() -> int:
    """Kills for memory in this process's group, or on the machine where groups do not tell."""
    counters = read_counters()
    if counters is not None:
        return counters.oom_kills
    stat = Path("/proc/vmstat")
    lines = stat.read_text().splitlines() if stat.exists() else []
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def _environment(env: Mapping[str, str] | None, ladder: recover.Ladder | None, again: bool) -> dict[str, str]:
    # Workers are limited and forecast: memory that they free must be seen to be free.
    out = steady_environment(os.environ if env is None else env)
    out[hints.SUPERVISED] = "1"
    if again:
        out[hints.RESUME] = "1"
    if ladder is not None:
        out[hints.MICRO_BATCH] = str(ladder.micro)
    return out


@contextmanager
def _pickled(function: Callable[[], Any]) -> Iterator[list[str]]:
    import cloudpickle  # functions of scripts and notebooks, which plain pickle cannot carry

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "function.pickle"
        path.write_bytes(cloudpickle.dumps(function))
        yield [*_THIS, "--call", str(path)]


def main(argv: Sequence[str]) -> int:
    """`FOLDER -- COMMAND...` supervises a command; `--call FILE` is the worker of a pickled function."""
    if len(argv) == 2 and argv[0] == "--call":
        import cloudpickle

        cloudpickle.loads(Path(argv[1]).read_bytes())()
        return 0
    if len(argv) < 3 or argv[1] != "--":
        raise InvalidInput(f"A supervisor is started with FOLDER -- COMMAND..., not with {list(argv)}.")
    silence = events.listen(_say)
    try:
        code = supervise(argv[2:], checkpoint=argv[0]).returncode
    except OutOfMemory as error:
        print(f"penstock: {error}", file=sys.stderr)
        return 1
    finally:
        silence()
    return code if code >= 0 else 128 - code


def _say(event: Event) -> None:
    """One line for the terminal of a script that supervises itself: nobody else is there to hear of a restart."""
    if event.kind != "guard.restart":
        return
    micro, reason = event.values["micro"], " for its memory" if event.values["confirmed"] else ""
    how = f" in micro-batches of {micro}" if micro else ""
    print(f"penstock: the worker was ended{reason} ({event.values['death']}); it goes on{how}.", file=sys.stderr)
