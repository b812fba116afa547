"""A page of numbers that outlives the process: phase, epoch, step and counters.

Covers: one small file per process, mapped into memory, so that telling a step costs no system call and no flush.
Does not cover: who changes the numbers (hooks).
"""

import mmap
import os

PHASES = ("start", "import", "load", "train", "validation", "save", "predict", "end")
SLOTS = (
    "ready", "phase", "epoch", "step", "validation_steps", "predict_steps", "traces", "models", "predicts", "saves",
    "ppid", "loaders", "pools", "forked", "evals", "fits", "answers",
    "walk_us",
)  # fmt: skip
NBYTES = 8 * len(SLOTS)
(
    READY, PHASE, EPOCH, STEP, VALIDATION_STEPS, PREDICT_STEPS, TRACES, MODELS, PREDICTS, SAVES, PPID, LOADERS, POOLS,
    FORKED, EVALS, FITS, ANSWERS, WALK_US,
) = range(len(SLOTS))  # fmt: skip
NUMBER = {name: number for number, name in enumerate(PHASES)}


class Board:
    """The numbers of this process; `page` is replaced after a fork."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.page = memoryview(bytearray(NBYTES)).cast("q")

    def open(self, *, forked: bool = False) -> None:
        """Start a page of our own; a forked child must not write on its parent's."""
        before = self.page
        descriptor = os.open(os.path.join(self.folder, "board.%d" % os.getpid()), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.ftruncate(descriptor, NBYTES)
            self.page = memoryview(mmap.mmap(descriptor, NBYTES)).cast("q")
        finally:
            os.close(descriptor)
        self.page[PHASE] = before[PHASE]
        self.page[PPID] = os.getppid()
        self.page[FORKED] = int(forked)

    def enter(self, phase: str) -> int:
        """Change the phase and return the one before."""
        before = self.page[PHASE]
        self.page[PHASE] = NUMBER[phase]
        return before

    def restore(self, phase: int) -> None:
        self.page[PHASE] = phase
