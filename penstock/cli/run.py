"""`penstock run`: run any training script under a limit, and say why it died if it dies.

Covers: the command's options, where the evidence goes, what is printed at the end.
Does not cover: supervising and judging (penstock.doctor).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from penstock.core.errors import InvalidInput
from penstock.core.sizes import option_size

if TYPE_CHECKING:  # the doctor's rooms are loaded by the command that needs them: all others answer without
    from penstock.doctor.verdict.verdict import RunVerdict

PASSED_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}


def run(
    command: Annotated[list[str], typer.Argument(help="The command, after `--`")],
    memory: Annotated[str | None, typer.Option(help="Limit such as 4GB; without it what the machine gives")] = None,
    retry: Annotated[int, typer.Option(min=0, help="Run again so often after a death for memory")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for the evidence; without it runs/NAME-TIME")] = None,
    minutes: Annotated[float | None, typer.Option(help="Stop after so many minutes")] = None,
) -> None:
    """Run a training script, unchanged, and say why it died if it dies.

    Memory of all its processes, phases, stacks and the largest names are written to disk all the time: the verdict can
    be computed even if everything was killed (`penstock verdict FOLDER`). The exit code is the command's own.

    Examples:

        penstock run -- python train.py --epochs 10

        penstock run --memory 4GB --retry 2 --out runs/first -- python train.py
    """
    from penstock.doctor.evidence.folder import RUN, VERDICT_HTML
    from penstock.doctor.run.retry import run_and_judge
    from penstock.doctor.run.supervise import Order
    from penstock.doctor.verdict.text import summarise

    folder = (out or Path("runs") / f"{_name(command)}-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    if (folder / RUN).exists():
        raise InvalidInput(f"{folder} holds the evidence of another run. Give another --out, or remove it.")
    console = Console(stderr=True)

    def tell(verdict: RunVerdict, attempt: int) -> None:
        if verdict.ending.kind == "finished" and not verdict.causes:
            return
        console.print()
        console.print(summarise(verdict))
        console.print(f"Verdict: {verdict.folder / VERDICT_HTML}", highlight=False, soft_wrap=True, markup=False)
        if attempt < retry and verdict.memory and verdict.ending.kind != "finished":
            console.print(_again(verdict, attempt + 1, retry), highlight=False, soft_wrap=True, markup=False)

    order = Order(tuple(command), folder, None if memory is None else option_size("--memory", memory), minutes=minutes)
    sys.exit(run_and_judge(order, retry, tell).exit_code)


def _again(verdict: RunVerdict, number: int, retry: int) -> str:
    """What is tried again, and what is different this time."""
    from penstock.doctor.run.retry import cures_of

    changed = " ".join(f"{name}={value}" for name, value in cures_of(verdict).items())
    text = f"Running it again ({number} of {retry}): {' '.join(verdict.command)}"
    text += (
        f"\nwith {changed}" if changed else "\nwith nothing changed: it gets through if it goes on from a checkpoint"
    )
    return f"{text}. {verdict.resume.text}".rstrip()


def _name(command: list[str]) -> str:
    """A short name for the run: the script's, if there is one."""
    script = next((word for word in command if word.endswith(".py")), command[0])
    return Path(script).stem or "run"
