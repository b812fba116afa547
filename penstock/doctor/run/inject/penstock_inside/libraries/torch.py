"""Hooks on PyTorch: steps, validation, saving, loading, loaders.

Covers: the optimizer's step as the training step, eval() as the start of validation, DataLoader's settings, the
checkpoints of Lightning, which saves into memory first.
Does not cover: devices (sampled from outside).
"""

from penstock_inside import board as slots


def _optimizer(hooks, module):
    page = hooks.board

    def stepped(*_):
        page.page[slots.STEP] += 1
        page.page[slots.PHASE] = slots.NUMBER["train"]

    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is not None:
        register(stepped)


def _module(hooks, module):
    board = hooks.board
    original = module.Module.train
    train, validation, load = (slots.NUMBER[name] for name in ("train", "validation", "load"))

    def changed(self, mode=True):
        page = board.page
        if not mode and page[slots.PHASE] in (train, load):
            page[slots.PHASE] = validation
            page[slots.EVALS] += 1
        elif mode and page[slots.PHASE] == validation:
            page[slots.PHASE] = train
        return original(self, mode)

    changed.__doc__, changed.__name__ = original.__doc__, original.__name__
    module.Module.train = changed


def _serialization(hooks, module):
    hooks.during(module, "save", "save", slots.SAVES)
    hooks.wrap(module, "save", None, hooks.saved)

    def before(args, kwargs):
        hooks.note("torch.load", mmap=kwargs.get("mmap"), map_location=str(kwargs.get("map_location")))

    hooks.wrap(module, "load", before)


def _lightning(hooks, module):
    hooks.wrap(module, "_atomic_save", None, hooks.saved)


def _loader(hooks, module):
    def made(result, args, kwargs, kept):
        loader = args[0]
        hooks.remember("dataset", getattr(loader, "dataset", None))
        hooks.note(
            "DataLoader",
            workers=getattr(loader, "num_workers", 0),
            batch=getattr(loader, "batch_size", None),
            prefetch=getattr(loader, "prefetch_factor", None),
            persistent=getattr(loader, "persistent_workers", None),
            pinned=getattr(loader, "pin_memory", None),
            dataset=type(getattr(loader, "dataset", None)).__name__,
            start=str(getattr(getattr(loader, "multiprocessing_context", None), "_name", None)),
        )

    def iterated(args, kwargs):
        hooks.board.page[slots.LOADERS] += 1

    hooks.wrap(module.DataLoader, "__init__", None, made)
    hooks.wrap(module.DataLoader, "__iter__", iterated)


TABLE = {
    "torch.optim.optimizer": _optimizer,
    "torch.nn.modules.module": _module,
    "torch.serialization": _serialization,
    "torch.utils.data.dataloader": _loader,
    "lightning.fabric.utilities.cloud_io": _lightning,
    "lightning_fabric.utilities.cloud_io": _lightning,
}
