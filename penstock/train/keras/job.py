"""The worker of a run: prepares, builds, trains, saves. Started and watched by train/supervise.py.

Covers: `python -m penstock.train.keras.job RUN_FOLDER`, from a run folder's config.json to model.keras.
Does not cover: restarting after a death, showing progress (train/supervise.py, train/show.py).

The framework is loaded beside the pass over the data where there is room for both, else after it. SIGINT is left to the
parent; SIGTERM saves and stops.
"""

from __future__ import annotations

import errno
import math
import os
import re
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from penstock.core.durable import replace_durably
from penstock.core.errors import BadData, InvalidInput, PenstockError
from penstock.core.events import events
from penstock.core.sizes import parse_size
from penstock.core.world import RanksLost, launched_world
from penstock.distribute.join import join
from penstock.distribute.parent_death import die_with_parent, only_worker
from penstock.engine.pipe import cores
from penstock.guard.checkpoint.folder import CheckpointFolder
from penstock.guard.devices import setup_devices
from penstock.guard.stop import LOST_CODE
from penstock.guard.supervisor_hints import micro_batch_hint
from penstock.memory.account import add_holder
from penstock.memory.limits import current_limit, limit
from penstock.memory.meter import Meter
from penstock.train.config import MODELS, PRECISIONS, Config, read_config, write_json
from penstock.train.flow import Streams, prepare, streams
from penstock.train.forecast import fits_obviously, forecast_micro_batch
from penstock.train.keras.loading import Loading
from penstock.train.recipe import DataRecipe, read_recipe, write_recipe
from penstock.train.user_code import call_user
from penstock.watch.record import Recorder, start_values
from penstock.watch.run_folder import CHECKPOINTS, METRICS, MODEL, PREPARE, rank_folder, read_events

FAILED = 1
TOLD_EVERY_S = 0.5
WAIT_S = 0.1


def main(folder: Path) -> int:
    """Run to the end; the exit code is 0, or that of an error, which the last event describes."""
    if threading.current_thread() is threading.main_thread():  # Ray calls this in a thread of its worker
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        die_with_parent()
    config = read_config(folder)
    world = launched_world()
    if config.memory_nbytes is not None:
        limit(config.memory_nbytes // world.local_size)
    home = rank_folder(folder, world.rank)
    with only_worker(home), Recorder(home):
        attempt = 1 + sum(1 for event in read_events(home) if event["kind"] == "run.start")
        events.emit("run.start", "train", **start_values(folder, attempt=attempt, config=config.as_dict()))
        try:
            train(folder, config)
        except BadData as error:
            return _failed(f"{error}. To leave damaged data out, add --on-error skip.")
        except RanksLost as error:
            _failed(str(error))
            return LOST_CODE
        except PenstockError as error:
            return _failed(str(error))
        except Exception as error:
            traceback.print_exc()
            return _failed(told(error, folder))
        events.emit("run.end", "train", status="finished", error="")
    return 0


def train(folder: Path, config: Config) -> None:
    """All stages, in order. Of several ranks the first prepares and saves; all train."""
    world = launched_world()
    late = config.backend in ("tensorflow", "torch")  # these take a limit only once they are imported
    setup_devices(None if late else config.device_memory, frameworks=(config.backend,))
    loading = Loading(config, alone=world.size == 1)
    loading.start()
    recipe = _prepared(folder, config, loading.beside) if world.rank == 0 else _prepared_by_first(folder)
    found = streams(config, recipe, ranks=world.size)
    begun = bool(CheckpointFolder(folder / CHECKPOINTS).list())
    will_forecast = config.forecast and not begun and micro_batch_hint() is None and world.size == 1
    will_forecast = will_forecast and not fits_obviously(config, recipe)
    _tell_plan(found, config, recipe, will_forecast)
    micro = forecast_micro_batch(folder, config, found) if will_forecast else None
    if world.size > 1:
        join(config.backend)  # before the framework is loaded: JAX cannot join later
    loading.wait()
    import keras  # where memory is short only now: the pass over the data can do without its hundreds of megabytes

    _make_repeatable(keras, config)
    _share_cores(config)
    from penstock.guard.keras.private import tensorflow_left_out
    from penstock.train.keras.models import make_model

    if config.device_memory is not None and late:
        setup_devices(config.device_memory, frameworks=(config.backend,))
    _name_holder(f"{config.backend} and libraries", Meter().read().nbytes)
    model = make_model(config.model, recipe.inputs(), recipe.target, config.learning_rate)
    began_s = time.time()
    history = _fit(folder, config, model, found, micro)
    if world.rank > 0:
        return
    with tensorflow_left_out():
        save_model(model, folder / MODEL)
    write_json(folder / METRICS, metrics_of(history, recipe, time.time() - began_s))


def _prepared(folder: Path, config: Config, loads_beside: bool) -> DataRecipe:
    """The recipe of this run: the one that an earlier attempt kept, or a fresh one."""
    if (folder / PREPARE).exists():
        return read_recipe(folder)
    began_s = time.monotonic()
    last_s = [0.0]

    def progress(rows: int) -> None:
        if time.monotonic() - last_s[0] >= TOLD_EVERY_S:
            last_s[0] = time.monotonic()
            events.emit("train.preparing", "prepare", rows=rows, seconds=time.monotonic() - began_s)

    beside = config.backend if loads_beside else None
    events.emit("train.preparing", "prepare", rows=0, seconds=0.0, loading=beside)
    recipe = prepare(config, progress)
    write_recipe(folder, recipe)
    seconds = time.monotonic() - began_s
    events.emit("train.prepared", "prepare", text=str(recipe), ignored=recipe.ignored, seconds=seconds, **recipe.rows)
    return recipe


def _prepared_by_first(folder: Path) -> DataRecipe:
    """What rank 0 learns from the data. If it fails, the launcher ends this rank too."""
    while not (folder / PREPARE).exists():
        time.sleep(WAIT_S)
    return read_recipe(folder)


def _tell_plan(found: Streams, config: Config, recipe: DataRecipe, will_forecast: bool) -> None:
    stages = [{"name": line.strip(" ->"), "nbytes": _most_nbytes(line)} for line in found.plan.splitlines()]
    events.emit("run.plan", "train", text=found.plan, stages=stages)
    events.emit(
        "train.data", "train", text=str(recipe), train_rows=recipe.rows["train"], steps=len(found.train),
        validated=found.val is not None, limit_nbytes=current_limit().nbytes, backend=config.backend,
        will_forecast=will_forecast,
    )  # fmt: skip


def _most_nbytes(line: str) -> int | None:
    """What a stage of the plan may hold, where it says so."""
    found = re.search(r"up to ([\d.]+(?:e\+\d+)? [kKMGT]?B)", line)
    return parse_size(found[1].replace(" ", "")) if found else None


def _name_holder(name: str, nbytes: int) -> None:
    """Account for memory that is taken once and kept, so that displays can say whose it is."""
    add_holder(name, lambda: nbytes)


def _make_repeatable(keras: Any, config: Config) -> None:
    """The same seed gives the same weights: seeds of all generators, and operations that do not race."""
    from penstock.guard.keras.private import tensorflow_left_out

    with tensorflow_left_out():
        keras.utils.set_random_seed(config.seed)
    if not config.deterministic:
        return
    if config.backend == "tensorflow":
        sys.modules["tensorflow"].config.experimental.enable_op_determinism()
    elif config.backend == "torch":
        torch = sys.modules["torch"]
        torch.use_deterministic_algorithms(True, warn_only=True)
        # Nothing here reads memory before it is written: filling each new tensor with NaN would only take time.
        torch.utils.deterministic.fill_uninitialized_memory = False


def _share_cores(config: Config) -> None:
    """Leave cores to the threads that read, where torch computes a small model: the ones that come with the command.

    Torch divides each operation among all cores and waits for the slowest part. Beside threads that read, one part is
    always late: with two cores, small convolutions take several times as long on two threads as on one
    (docs/decisions/0030).
    """
    if config.backend == "torch" and config.model in ("auto", *MODELS) and "OMP_NUM_THREADS" not in os.environ:
        sys.modules["torch"].set_num_threads(max(1, cores() // 2))


def _fit(folder: Path, config: Config, model: Any, found: Streams, micro: int | None) -> Any:
    from penstock.guard.fit import fit

    checkpoints = folder / CHECKPOINTS
    return fit(
        model,
        found.train,
        epochs=config.epochs,
        callbacks=_callbacks(folder, config),
        validation_data=found.val,
        micro_batch=micro,
        precision=PRECISIONS[config.precision],
        checkpoint=checkpoints,
        checkpoint_minutes=config.checkpoint_minutes,
        resume=bool(CheckpointFolder(checkpoints).list()),
    )


def _callbacks(folder: Path, config: Config) -> list[Any] | None:
    """The user's Keras callbacks, made anew in every worker: their function may ask for the run `folder`."""
    if config.callbacks is None:
        return None
    found = call_user(config.callbacks, {"folder": folder})
    made = list(found) if isinstance(found, (list, tuple)) else [found]
    from keras.callbacks import Callback

    wrong = [type(one).__name__ for one in made if not isinstance(one, Callback)]
    if wrong:
        raise InvalidInput(f"{config.callbacks} must return Keras callbacks, not {', '.join(wrong)}.")
    return made


def save_model(model: Any, path: Path) -> None:
    """Write a .keras file that is whole or not there."""
    fresh = path.with_name(f".unfinished-{path.name}")
    try:
        model.save(fresh)
        replace_durably(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)  # half a model, if the disk is full, is in the way of what makes room


def metrics_of(history: Any, recipe: DataRecipe, seconds: float) -> dict[str, Any]:
    """What a run reached, for people and scripts."""
    logs = {name: [float(value) for value in values] for name, values in history.history.items()}
    last = {name: values[-1] for name, values in logs.items() if values}
    found = {"final": last, "history": logs, "rows": recipe.rows, "seconds_last_attempt": round(seconds, 3)}
    if recipe.target.task == "number":
        scale = recipe.target.std
        units = {name: value * scale for name, value in last.items() if name.endswith("mae")}
        found["in_units_of_the_target"] = units
    return _finite(found)  # type: ignore[no-any-return]


def _finite(values: Any) -> Any:
    """The same with None for NaN and infinities, which JSON does not know."""
    if isinstance(values, dict):
        return {name: _finite(value) for name, value in values.items()}
    if isinstance(values, list):
        return [_finite(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


def told(error: Exception, folder: Path) -> str:
    """An unexpected error in words; for a full disk, which is no bug, what to do about it."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = error.filename or folder
        return f"no space is left for {where}. Make room, then go on with: penstock train --resume --out {folder}"
    return f"{type(error).__name__}: {error}"


def _failed(why: str) -> int:
    print(f"penstock train: {why}", file=sys.stderr, flush=True)
    events.emit("run.end", "train", status="failed", error=why)
    return FAILED


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
