"""The guarded training loop for Keras models.

Covers: the run of one `fit` call: build, resume, steps, validation, saving, stopping.
Does not cover: how options reach it (guard/fit.py), what is written (save.py).
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import keras

from penstock.core.errors import InvalidInput, OutOfMemory
from penstock.core.events import events
from penstock.feed.keras_processes import over_processes
from penstock.guard.checkpoint.folder import Checkpoint
from penstock.guard.epochs import Epochs
from penstock.guard.fit import FitOptions
from penstock.guard.forecast.rehearse import lengths_vary, worst_batch
from penstock.guard.keras import parts as keras_model
from penstock.guard.keras import save as keras_save
from penstock.guard.keras.files import RunFiles
from penstock.guard.keras.predict import evaluate_with
from penstock.guard.keras.ranks import Together
from penstock.guard.keras.remat import Remat
from penstock.guard.keras.step import EvalStep, Logs, TrainStep, as_floats, make_backend
from penstock.guard.progress import Progress
from penstock.guard.ranks.agree import OneRank, Ranks, find_ranks
from penstock.guard.ranks.in_step import NO_ROWS, InStep
from penstock.guard.recovery.ladder import Allowed
from penstock.guard.recovery.step import Control
from penstock.guard.stop import EXIT_CODE, StopSignal, tell_stopped
from penstock.guard.supervisor_hints import micro_batch_hint
from penstock.guard.torch.guard import ladder_from, warn_batch_dependent

if TYPE_CHECKING:
    from penstock.guard.keras.backends.jax_spread import SharedBatches


class Training:
    """One call of `fit`."""

    def __init__(self, model: keras.Model, ds: Iterable[Any], options: FitOptions) -> None:
        keras_model.check(model, processes=True)
        self.model, self.options = model, options
        self.epochs = Epochs(ds, steps=options.steps_per_epoch)
        self._batches_per_epoch = _length(ds)
        self.ranks = find_ranks(keras.backend.backend())
        self.files = RunFiles(options, writes=self.ranks.rank == 0)
        self.epoch, self.step, self.total_steps = options.initial_epoch, 0, 0
        self.history: list[tuple[int, Logs]] = []
        self.remat = Remat(model)
        allowed = Allowed(precision=options.precision == "auto", remat=options.remat == "auto")
        self.shared = shared_batches(self.ranks)
        self.together = Together(model, self.ranks, spread=self.shared is not None)
        first = self.together.smallest(micro_batch_hint() or options.micro_batch)
        self.control = Control(
            who=model.name, allowed=allowed, first_micro=first, on_change=self.files.tell,
            ranks=self.ranks if self.together.apart else OneRank(),
        )  # fmt: skip
        self.control.on_give_up = self._save_before_giving_up
        self.eval_control = Control(who=f"{model.name} evaluation", allowed=Allowed(), first_micro=first)
        self.progress = Progress()
        self._ds, self._resumed, self._warned = ds, False, False
        self._spec: dict[str, Any] | None = None

    def run(self) -> keras.callbacks.History:
        """Train to the end; returns the history of all epochs, those before a resume included."""
        try:
            history = self._run()
            self.files.finish()
            return history
        except BaseException:
            self.files.abandon()
            raise
        finally:
            self.remat.off()

    def _run(self) -> keras.callbacks.History:
        saved = self.files.find()
        if saved is not None:
            self._take_place(saved)
        batches = self._first_epoch()
        callbacks = self._callbacks()
        self._restore(saved)
        self.model.stop_training = False
        self.progress = Progress(samples=self.progress.samples)  # its clock starts after building and rehearsing
        callbacks.on_train_begin()
        for epoch, logs in self.history:
            self.model.history.on_epoch_end(epoch, logs)
        self._tell("begin", epoch=self.epoch, step=self.step, resumed=saved is not None)
        with StopSignal(enabled=self.files.folder is not None) as stop:
            logs = self._run_epochs(batches, callbacks, stop)
        if self.files.folder is not None:
            self._save(now=True)  # before averages are written over the weights, so that more epochs can follow
        self.model.optimizer.finalize_variable_values(self.model.trainable_weights)
        callbacks.on_train_end(logs)
        self._tell("end", total_steps=self.total_steps, stopped=self.epoch < self.options.epochs)
        history: keras.callbacks.History = self.model.history
        return history

    def _run_epochs(self, batches: Any, callbacks: Any, stop: StopSignal) -> Logs:
        logs: Logs = {}
        while self.epoch < self.options.epochs and not self.model.stop_training:
            epoch = self.epoch
            self.progress.begin_epoch()
            if self.step == 0:
                self.model.reset_metrics()
                callbacks.on_epoch_begin(epoch)
            self._run_steps(batches, callbacks, stop)
            self.together.merge_statistics()
            self.together.merge_metrics()
            logs = as_floats(self.model.get_metrics_result())
            validation = self.options.validation_data
            if validation is not None and (epoch + 1) % self.options.validation_freq == 0:
                logs |= {f"val_{name}": value for name, value in self._validate(validation).items()}
            callbacks.on_epoch_end(epoch, logs)
            seconds, samples = self.progress.end_epoch()
            self._tell("epoch", epoch=epoch, logs=logs, seconds=seconds, samples=samples)
            self.history.append((epoch, logs))
            self.epoch, self.step = epoch + 1, 0
            self._save_if_due(stop, self.ranks.any(self._wants_save(stop)))
            batches = self._epoch()
        return logs

    def _run_steps(self, batches: Any, callbacks: Any, stop: StopSignal) -> None:
        begins, watched = _overridden(callbacks, "begin"), _overridden(callbacks, "end")
        self.control.wish = lambda: self._wants_save(stop)
        for batch in self.progress.timed(batches):
            if begins:
                callbacks.on_train_batch_begin(self.step)
            self._train(self._unpacked(batch))
            del batch  # the stream may use its buffers again
            self.step += 1
            self.total_steps += 1
            due = self.progress.step(self.control.rows if self.shared is None else self.shared.rows)
            # Turning metrics into numbers waits for the device: only where they are looked at.
            logs = as_floats(self.train_step.logs) if watched or due else {}
            if watched:
                callbacks.on_train_batch_end(self.step - 1, logs)
            if due:
                self._tell_progress(logs)
            # Ranks have agreed during the step; a single one can still ask itself, and so stops a batch earlier.
            agreed = self.together.apart
            self._save_if_due(stop, self.control.granted if agreed else self.ranks.any(self._wants_save(stop)))
            if self.model.stop_training:
                return
        if self.step == 0:
            raise InvalidInput("The dataset has no batches.")

    def _tell_progress(self, logs: Logs) -> None:
        since = self.progress.since()
        self._tell(
            "progress",
            epoch=self.epoch,
            step=self.step,
            steps_per_epoch=self.options.steps_per_epoch or self._batches_per_epoch,
            total_steps=self.total_steps,
            samples=self.progress.samples,
            samples_per_s=since.samples_per_s,
            waited_share=since.waited_share,
            waited_s=self.progress.waited_s,
            logs=logs,
            micro=None if self.control.ladder is None else self.control.ladder.micro,
            **({} if self.together.alone else {"ranks_waited_s": round(self.ranks.waited_s, 4)}),
        )

    def _tell(self, kind: str, **values: Any) -> None:
        values = {"epochs": self.options.epochs, **values} if kind != "end" else values
        events.emit(f"train.{kind}", self.model.name, **values)

    def _train(self, batch: Any) -> None:
        if self.shared is not None:
            batch = self._shared(batch)
        parts = self.control.run(self.train_step, batch)
        if parts > 1 and not self._warned:
            self._warned = True
            warn_batch_dependent(self.backend.program.batch_norms())
            keras_model.warn_unseen(self.model)

    def _shared(self, batch: Any) -> Any:
        assert self.shared is not None
        return self.shared.join(batch, keras_save.like_spec(self._spec or {}))

    def _validate(self, data: Iterable[Any]) -> Logs:
        if self.shared is not None:
            data = (self._shared(self._unpacked(batch)) for batch in InStep(iter(data), self.ranks, "pad"))
        return evaluate_with(
            self.eval_step,
            self.eval_control,
            data,
            steps=self.options.validation_steps,
            class_weight=None,
            merge=self.together.merge_metrics if self.together.apart else None,
        )

    # Starting.

    def _first_epoch(self) -> Any:
        """Build the model from the first batch, which is then put back in front."""
        batches = self._epoch()
        first = next(batches, None)
        if first is None and self.step == 0 and self.epoch < self.options.epochs:
            raise InvalidInput("The dataset has no batches.")
        shown = self._unpacked(first) if first is not None and first is not NO_ROWS else None
        if shown is not None:
            keras_model.check_batch(self.model, shown)
            self._spec = keras_save.spec_of(shown)
        self._spec = self.together.spec(self._spec)
        if self._spec is None:
            raise InvalidInput("There is no batch to build the model from, and nothing to train.")
        if self.options.precision not in (None, "auto"):  # before the optimizer's state is made: float16 wraps it
            keras_model.set_precision(self.model, str(self.options.precision))
        keras_model.build(self.model, keras_save.like_spec(self._spec))
        if self.options.remat and not isinstance(self.options.remat, str):
            self._recompute(self.options.remat)
        self.backend = make_backend(self.model)
        self.train_step, self.eval_step = TrainStep(self.backend), EvalStep(self.backend)
        self.train_step.on_remat = self._recompute_more
        self.train_step.several = self.together.apart
        if shown is not None and self.together.alone:
            self._rehearse(shown)
        self.together.begin()
        return batches if first is None else itertools.chain([first], batches)

    def _recompute(self, layers: bool | Sequence[str]) -> None:
        names = self.remat.choose(layers)
        events.emit("guard.remat", self.model.name, layers=names, why="asked for")

    def _recompute_more(self) -> bool:
        x, _, _ = keras_save.like_spec(self._spec or {})
        return self.remat.more(x)

    def _rehearse(self, first: tuple[Any, Any, Any]) -> None:
        """Try the worst batch, an evaluation and a save, then put everything back."""
        rehearse = self.options.rehearse
        if rehearse is None:  # by itself where lengths vary, once: a run that goes on has met its batches
            rehearse = self._resumed is False and lengths_vary(self._ds)
        if rehearse is False:
            return
        found = (worst_batch(self._ds) if lengths_vary(self._ds) else None) if rehearse is True else rehearse
        worst = first if found is None else self._unpacked(found)

        def trial() -> None:
            self._train(worst)
            validation = self.options.validation_data
            if validation is not None and not hasattr(validation, "__next__"):
                found = worst_batch(validation) if lengths_vary(validation) else next(iter(validation))
                self.eval_control.run(self.eval_step, keras_model.unpack(found))

        self.files.rehearsed(self.backend.program, trial)
        micro = None if self.control.ladder is None else self.control.ladder.micro
        shapes = {name: leaf and leaf[0] for name, leaf in keras_save.spec_of(worst)["leaves"].items()}
        events.emit("guard.rehearsed", self.model.name, micro=micro, shapes=shapes)

    def _callbacks(self) -> Any:
        options = self.options
        if isinstance(options.callbacks, keras.callbacks.CallbackList):
            return options.callbacks
        return keras.callbacks.CallbackList(
            keras.tree.flatten(options.callbacks or ()),
            add_history=True,
            add_progbar=options.verbose != 0,
            verbose=options.verbose,
            epochs=options.epochs,
            steps=options.steps_per_epoch or self._batches_per_epoch,
            model=self.model,
        )

    def _epoch(self) -> Iterator[Any]:
        """The batches of the next epoch, or of the rest of one; as many on every rank."""
        batches = self.epochs.epoch(self.step)
        return batches if self.together.alone else InStep(batches, self.ranks, self.options.uneven)

    def _unpacked(self, batch: Any) -> Any:
        if batch is NO_ROWS:
            return batch
        return keras_model.unpack(batch, self.options.class_weight)

    # Saving.

    def _take_place(self, saved: Checkpoint) -> None:
        meta = saved.meta
        self.epoch, self.step, self.total_steps = meta["epoch"], meta["step"], meta["total_steps"]
        self.history = [(int(epoch), logs) for epoch, logs in meta["history"]]
        self._spec = meta["spec"]
        self._resumed = True
        self.progress = Progress(samples=meta.get("samples", 0))
        self.epochs.resume(self.together.place_of(meta["place"]))
        events.emit(
            "guard.resume", str(saved.path), found=True, epoch=self.epoch, step=self.step, total_steps=self.total_steps
        )

    def _restore(self, saved: Checkpoint | None) -> None:
        if saved is None:
            return
        keras_save.restore(self.backend.program, saved)
        if self.ranks.rank > 0 and self.together.apart:
            self.model.reset_metrics()  # the saved ones are of all ranks, and rank 0 goes on with them
        ladder = ladder_from(saved.meta["ladder"])
        hint = micro_batch_hint()
        if ladder is not None and hint is not None:
            ladder = dataclasses.replace(ladder, micro=min(hint, ladder.micro), failed=hint + 1)
        self.control.ladder = ladder
        if ladder is not None:
            self.files.tell(ladder)
            if ladder.precision_lowered:
                self.train_step.lower_precision()
        if saved.meta.get("remat"):
            self._recompute(saved.meta["remat"])
            self.backend.remake()

    def _wants_save(self, stop: StopSignal) -> bool:
        return stop.asked or self.files.due(self.total_steps)

    def _save_if_due(self, stop: StopSignal, due: bool) -> None:
        """Save where any rank wants to: all of them together, since the place in the data is everyone's."""
        if not due:
            return
        stopping = self.ranks.any(stop.asked)
        self._save(now=stopping)
        if stopping:
            events.emit("guard.stopped", self.model.name, epoch=self.epoch, step=self.step)
            self._tell("end", total_steps=self.total_steps, stopped=True)
            if self.files.folder is not None:
                tell_stopped(self.files.folder.path, epoch=self.epoch, step=self.step)
            raise SystemExit(EXIT_CODE)

    def _save(self, *, now: bool = False) -> None:
        meta = self._meta()
        with self.together.as_saved():
            if self.ranks.rank == 0:
                self.files.save(self.backend.program, self.total_steps, meta, now=now)
            else:
                if self.shared is not None:  # rank 0 asks for pieces of variables that are here
                    collections.deque(keras_save.arrays(self.backend.program), maxlen=0)
                self.files.skip(self.total_steps)

    def _save_before_giving_up(self) -> None:
        try:
            self._save(now=True)
        except (OutOfMemory, OSError) as error:
            events.emit("guard.save_failed", self.model.name, error=repr(error))

    def _meta(self) -> dict[str, Any]:
        ladder = self.control.ladder
        return {
            "epoch": self.epoch,
            "step": self.step,
            "total_steps": self.total_steps,
            "history": list(self.history),  # as they are now: they may be written later
            "samples": self.progress.samples,
            "place": self.together.place(self.epochs.place),
            "spec": self._spec,
            "remat": list(self.remat.names),
            "ladder": None if ladder is None else dataclasses.asdict(ladder),
        }


def train(model: keras.Model, ds: Iterable[Any], options: FitOptions) -> keras.callbacks.History:
    """Train where the model's variables can be reached."""
    with keras_model.scope_of(model):
        return Training(model, ds, options).run()


def shared_batches(ranks: Ranks) -> SharedBatches | None:
    """How processes bring their rows together, where they all have one model in common."""
    if not over_processes():
        return None
    from penstock.guard.keras.backends.jax_spread import SharedBatches

    return SharedBatches(ranks)


def _overridden(callbacks: Any, when: str) -> bool:
    """Whether a callback does something at each batch's begin or end. Keras marks the methods that do nothing."""
    if not isinstance(callbacks, keras.callbacks.CallbackList):
        return True
    hooks = (f"on_batch_{when}", f"on_train_batch_{when}")
    methods = [getattr(callback, hook) for callback in callbacks.callbacks for hook in hooks]
    return not all(getattr(method, "_is_default", False) for method in methods)


def _length(ds: Any) -> int | None:
    """Batches in an epoch, where the data knows."""
    try:
        return len(ds)
    except (TypeError, ValueError):
        return None
