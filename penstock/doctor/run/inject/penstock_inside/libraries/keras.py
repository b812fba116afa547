"""Hooks on Keras: fit, evaluate, predict, steps, saving, models built.

Covers: what its callback list tells of steps and epochs, the bytes of arrays handed to fit and predict.
Does not cover: the backends' own functions (tensorflow.py, torch.py, jax.py).
"""

import sys

from penstock_inside import board as slots
from penstock_inside.holders import weigh


def _callbacks(hooks, module):
    board, owner = hooks.board, module.CallbackList

    def tells(name, slot, phase, value=False):
        number = slots.NUMBER[phase]

        def before(args, kwargs):
            board.page[slots.PHASE] = number
            if slot is not None:
                board.page[slot] = args[1] + 1 if value else board.page[slot] + 1

        if hasattr(owner, name):
            hooks.wrap(owner, name, before)

    tells("on_epoch_begin", slots.EPOCH, "train", value=True)
    tells("on_train_batch_begin", slots.STEP, "train")
    tells("on_test_batch_begin", slots.VALIDATION_STEPS, "validation")
    tells("on_predict_batch_begin", slots.PREDICT_STEPS, "predict")
    tells("on_test_begin", slots.EVALS, "validation")


def _bytes(value):
    if isinstance(value, (list, tuple)):
        return sum(_bytes(item) for item in value)
    if isinstance(value, dict):
        return sum(_bytes(item) for item in value.values())
    return weigh(value)[0] or int(getattr(value, "nbytes", 0) or 0)


def _trainer(hooks, module):
    for owner in vars(module).values():
        if not (isinstance(owner, type) and {"fit", "predict"} <= set(vars(owner))):
            continue
        for name, phase, slot in (
            ("fit", "train", slots.FITS),
            ("evaluate", "validation", slots.EVALS),
            ("predict", "predict", slots.PREDICTS),
        ):
            _call(hooks, owner, name, phase, slot)
        for name, phase, slot in (
            ("train_on_batch", "train", slots.STEP),
            ("test_on_batch", "validation", slots.VALIDATION_STEPS),
            ("predict_on_batch", "predict", slots.PREDICT_STEPS),
        ):
            if name in vars(owner):
                hooks.during(owner, name, phase, slot)
        for name in {"fit", "train_on_batch"} & set(vars(owner)):
            _counted(hooks, owner, name)


def _counted(hooks, owner, name):
    """Steps in here are counted already."""

    def before(args, kwargs):
        hooks.steps_counted = True

    def after(result, args, kwargs, kept):
        hooks.steps_counted = False

    hooks.wrap(owner, name, before, after)


def _call(hooks, owner, name, phase, slot):
    def before(args, kwargs):
        data = args[1] if len(args) > 1 else kwargs.get("x")
        hooks.note(
            "keras." + name, nbytes=_bytes(data), array=hasattr(data, "shape"), split=kwargs.get("validation_split")
        )
        hooks.board.page[slot] += 1
        return hooks.board.enter(phase)

    def after(result, args, kwargs, kept):
        if name == "predict" and result is not None:
            hooks.note("keras.predicted", nbytes=_bytes(result))
        if kept is not None:
            hooks.board.restore(kept)

    hooks.wrap(owner, name, before, after)


def _model(hooks, module):
    def before(args, kwargs):
        hooks.board.page[slots.MODELS] += 1
        hooks.note("keras.Model", models=hooks.board.page[slots.MODELS])

    hooks.wrap(module.Model, "__init__", before)


def _optimizer(hooks, module):
    """A loop of the script's own applies gradients itself; fit counts its steps by its callbacks."""

    def before(args, kwargs):
        tensorflow = sys.modules.get("tensorflow")
        if not hooks.steps_counted and (tensorflow is None or tensorflow.executing_eagerly()):
            hooks.board.page[slots.STEP] += 1
            hooks.board.page[slots.PHASE] = slots.NUMBER["train"]

    hooks.wrap(module.BaseOptimizer, "apply", before)


def _saving(hooks, module):
    for name in ("save_model", "save_weights"):
        if hasattr(module, name):
            hooks.during(module, name, "save", slots.SAVES)
            hooks.wrap(module, name, None, hooks.saved)


TABLE = {
    "keras.src.callbacks.callback_list": _callbacks,
    "keras.src.backend.tensorflow.trainer": _trainer,
    "keras.src.backend.torch.trainer": _trainer,
    "keras.src.backend.jax.trainer": _trainer,
    "keras.src.models.model": _model,
    "keras.src.optimizers.base_optimizer": _optimizer,
    "keras.src.saving.saving_api": _saving,
}
