"""The checkpoint folder of one Keras run: what is found there, when to write, writing.

Covers: finding the checkpoint to go on from, the cadence of saves, saves that run out of memory, rehearsing one.
Does not cover: which variables there are (save.py), the file (guard/checkpoint/folder.py).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.core.errors import OutOfMemory
from penstock.core.events import events
from penstock.guard.checkpoint.folder import Checkpoint, CheckpointFolder, read
from penstock.guard.checkpoint.saver import Saver
from penstock.guard.fit import FitOptions
from penstock.guard.keras import save as keras_save
from penstock.guard.keras.parts import Program
from penstock.guard.recovery.classify import classify
from penstock.guard.recovery.free_memory import release
from penstock.guard.recovery.ladder import Ladder
from penstock.guard.supervisor_hints import resume_hint, write_hint


class RunFiles:
    """Where a run is saved; without a folder nothing is ever due. Of several ranks one writes."""

    def __init__(self, options: FitOptions, *, writes: bool = True) -> None:
        self._options, self._writes = options, writes
        self.folder = None if options.checkpoint is None else CheckpointFolder(options.checkpoint)
        self._saver = None if self.folder is None else Saver(self.folder)
        self._next_save_s = time.monotonic() + 60 * options.checkpoint_minutes
        self._saved_at = 0

    def find(self) -> Checkpoint | None:
        """The checkpoint to go on from. A new run sets those of an earlier one aside."""
        if self.folder is None:
            return None
        if not (self._options.resume or resume_hint()):
            if self._writes:
                self.folder.set_aside()
            return None
        saved = self.folder.last_good()
        if saved is None:
            events.emit("guard.resume", str(self.folder.path), found=False)
        else:
            self._saved_at = saved.meta["total_steps"]
        return saved

    def due(self, total_steps: int) -> bool:
        """Whether the run should be saved after this step. Raises what went wrong with the last save."""
        if self._saver is None:
            return False
        self._saver.check()
        steps = self._options.checkpoint_steps
        if steps is not None and total_steps - self._saved_at >= steps:
            return True
        return time.monotonic() >= self._next_save_s

    def save(self, program: Program, total_steps: int, meta: dict[str, Any], *, now: bool = False) -> None:
        """Save the run; a lack of memory is met by freeing caches once."""
        if self._saver is None:
            return
        saver, self._saved_at = self._saver, total_steps
        meta = {**meta, "shapes": keras_save.signature(program)}

        def write(now: bool) -> None:
            saver.save(total_steps, lambda: keras_save.arrays(program), keras_save.nbytes(program), meta, now=now)

        _twice(lambda: write(now), lambda: write(True))
        self._next_save_s = time.monotonic() + 60 * self._options.checkpoint_minutes

    def skip(self, total_steps: int) -> None:
        """Another rank has saved the run at this step."""
        self._saved_at = total_steps
        self._next_save_s = time.monotonic() + 60 * self._options.checkpoint_minutes

    def finish(self) -> None:
        """Wait for a save that is on its way."""
        if self._saver is not None:
            self._saver.wait()

    def abandon(self) -> None:
        """The run has failed: wait all the same, but let no second error cover the first."""
        try:
            self.finish()
        except Exception as error:
            events.emit("guard.save_failed", str(self._options.checkpoint), error=repr(error))

    def tell(self, ladder: Ladder) -> None:
        """Tell a supervisor which size is being tried."""
        if self.folder is not None and self._writes:
            write_hint(self.folder.path, {"micro": ladder.micro, "batch": ladder.batch})

    def rehearsed(self, program: Program, trial: Callable[[], None]) -> None:
        """Save everything, run the trial, and put everything back from disk: no second copy is held meanwhile."""
        home = None if self.folder is None else self.folder.path
        if home is not None:
            home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="rehearsal-", dir=home) as place:
            path = Path(place) / "before.trial"
            _twice(*[lambda: keras_save.save(path, program, {})] * 2)
            try:
                trial()
            finally:
                keras_save.restore(program, read(path))


def _twice(first: Callable[[], None], second: Callable[[], None]) -> None:
    """Try, and if memory runs out free what can be freed and try once more."""
    text = ""
    for attempt in (first, second):
        try:
            attempt()
            return
        except Exception as error:
            found = classify(error)
            if found is None:
                raise
            text = found.text
        events.emit("guard.oom", "checkpoint", phase="save", rows=0, text=text)
        release()
    raise OutOfMemory(
        f"Saving a checkpoint does not fit, also after caches were freed: {text}. It holds one variable at a time: the "
        f"largest one needs as much memory again.",
        phase="save",
        micro=0,
    )
