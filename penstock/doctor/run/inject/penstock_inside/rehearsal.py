"""Hooks of a rehearsal: short passes, the worst batch first, saves that go elsewhere.

Covers: torch's DataLoader and Keras's fit, evaluate and predict end a pass after some batches, so that validation and
saving come within minutes; the largest rows of a sample make the first batch; checkpoints are written beside the
evidence, so that a rehearsal overwrites none. A second rehearsal may be without DataLoader workers.
Does not cover: loops over other iterables, which run until the time is up.
"""

import copy
import functools
import os
import time

from penstock_inside import board as slots
from penstock_inside.holders import weigh

BATCHES = 60
"""Batches of a pass: enough to see a slope."""
LOOK_S = 5.0
ROWS = 512


def _row_nbytes(value: object) -> int:
    if isinstance(value, (list, tuple)):
        return sum(_row_nbytes(item) for item in value[:64])
    if isinstance(value, dict):
        return sum(_row_nbytes(item) for item in value.values())
    if hasattr(value, "untyped_storage"):
        return value.numel() * value.element_size()
    return weigh(value, 1)[0]


def worst_batch(loader: object) -> "tuple[object, int] | None":
    """A batch of the largest rows of a sample, and how many rows were looked at; None where rows have no numbers."""
    size, dataset = getattr(loader, "batch_size", None), getattr(loader, "dataset", None)
    if not size or not hasattr(dataset, "__len__") or not hasattr(type(dataset), "__getitem__"):
        return None
    dataset = copy.copy(dataset)  # what it opens or fills at its first row is not for workers to inherit
    count, end_s = len(dataset), time.monotonic() + LOOK_S
    rows, seen = [], 0  # type: list[tuple[int, int]], int
    for number in range(0, count, max(1, count // ROWS)):
        if time.monotonic() > end_s:
            break
        rows.append((_row_nbytes(dataset[number]), number))
        seen += 1
    rows.sort(reverse=True)
    if len(rows) < size or rows[0][0] <= rows[-1][0]:  # rows of one size: every batch is the worst
        return None
    return loader.collate_fn([dataset[number] for _, number in rows[:size]]), seen


def _loader(hooks, module):
    original = module.DataLoader.__iter__

    def shortened(self):
        training = hooks.board.page[slots.PHASE] != slots.NUMBER["validation"]
        try:
            length = len(self)
        except TypeError:  # an iterable that does not tell
            length = None
        hooks.note("rehearsal.pass", length=length, epochs=1, training=training, batches=BATCHES)
        try:
            worst = worst_batch(self) if training else None
        except Exception as error:  # a dataset that fails here fails in the script too, with its own words
            hooks.note("rehearsal.worst", failed="%s: %s" % (type(error).__name__, error))
            worst = None
        if worst is not None:
            hooks.note("rehearsal.worst", nbytes=_row_nbytes(worst[0]), rows=worst[1])
            yield worst[0]
        for number, batch in enumerate(original(self)):
            if number >= BATCHES:
                return
            yield batch

    module.DataLoader.__iter__ = shortened
    if os.environ.get("PENSTOCK_WORKERS") == "0":
        module.DataLoader.__init__ = _without_workers(module.DataLoader.__init__)


NUMBER_OF_WORKERS = 6
"""The place of num_workers among DataLoader's arguments, `self` included."""
OF_WORKERS = ("num_workers", "prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")


def _without_workers(original):
    """The same loader in the main process: the other half of the experiment num_workers=0 against N."""

    @functools.wraps(original)
    def made(self, *args, **kwargs):
        for name in OF_WORKERS:
            kwargs.pop(name, None)
        args = (
            args[: NUMBER_OF_WORKERS - 1] + ((0,) if len(args) >= NUMBER_OF_WORKERS else ()) + args[NUMBER_OF_WORKERS:]
        )
        return original(self, *args, **kwargs)

    return made


def _trainer(hooks, module):
    for owner in vars(module).values():
        if not (isinstance(owner, type) and {"fit", "predict"} <= set(vars(owner))):
            continue
        for name, option in (("fit", "steps_per_epoch"), ("evaluate", "steps"), ("predict", "steps")):
            _cut(hooks, owner, name, option)


def _cut(hooks, owner, name, option):
    original = getattr(owner, name)

    def shortened(self, *args, **kwargs):
        x = args[0] if args else kwargs.get("x")
        try:
            length = len(x) if not hasattr(x, "shape") else -(-len(x) // (kwargs.get("batch_size") or 32))
        except TypeError:
            length = None
        given = kwargs.get(option) or length
        epochs = (args[3] if len(args) > 3 else kwargs.get("epochs", 1)) if name == "fit" else 1
        hooks.note("rehearsal.pass", length=given, epochs=epochs, training=name == "fit", batches=BATCHES)
        if len(args) < 4:  # further ones are given by place, and stay as they are
            if given is None or given > BATCHES:
                kwargs[option] = BATCHES
            if name == "fit":
                kwargs["epochs"] = min(2, epochs)
            if kwargs.get("validation_data") is not None and not isinstance(kwargs["validation_data"], (tuple, list)):
                kwargs["validation_steps"] = min(BATCHES, kwargs.get("validation_steps") or BATCHES)
        return original(self, *args, **kwargs)

    setattr(owner, name, shortened)


class Elsewhere:
    """Where files of a rehearsal go, by the name that the script gave."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.join(folder, "saved")
        self.paths = {}  # type: dict[str, str]

    def put(self, path: object) -> object:
        if not isinstance(path, (str, os.PathLike)):
            return path
        name = os.path.abspath(os.fspath(path))
        if name not in self.paths:
            os.makedirs(self.folder, exist_ok=True)
            self.paths[name] = os.path.join(self.folder, "%d-%s" % (len(self.paths), os.path.basename(name)))
        return self.paths[name]

    def get(self, path: object) -> object:
        if not isinstance(path, (str, os.PathLike)):
            return path
        return self.paths.get(os.path.abspath(os.fspath(path)), path)


def _divert(elsewhere, saves, loads, place):
    def hook(hooks, module):
        for names, change in ((saves, elsewhere.put), (loads, elsewhere.get)):
            for name in names:
                if hasattr(module, name):
                    setattr(module, name, _changed(getattr(module, name), change, place if names is saves else 0))

    return hook


def _changed(original, change, place):
    def diverted(*args, **kwargs):
        args = list(args)
        if len(args) > place:
            args[place] = change(args[place])
        for name in ("f", "filepath"):
            if name in kwargs:
                kwargs[name] = change(kwargs[name])
        return original(*args, **kwargs)

    return diverted


def table(folder: str) -> "dict[str, object]":
    """The hooks by module."""
    elsewhere = Elsewhere(folder)
    return {
        "torch.utils.data.dataloader": _loader,
        "torch.serialization": _divert(elsewhere, ("save",), ("load",), 1),
        "keras.src.backend.tensorflow.trainer": _trainer,
        "keras.src.backend.torch.trainer": _trainer,
        "keras.src.backend.jax.trainer": _trainer,
        "keras.src.saving.saving_api": _divert(elsewhere, ("save_model", "save_weights"), ("load_model",), 1),
    }
