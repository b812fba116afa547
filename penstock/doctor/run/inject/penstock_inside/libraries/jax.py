"""Hooks on JAX: programs compiled, and training steps.

Covers: its own monitoring events; optax.apply_updates; without optax, calls of a jitted function in whose trace a
gradient was taken, and gradients taken outside of any.
Does not cover: functions compiled ahead (lower, compile), whose calls nobody tells.
"""

from penstock_inside import board as slots

COMPILED = "/jax/core/compile/backend_compile_duration"
GRADIENTS = ("grad", "value_and_grad")


def _monitoring(hooks, module):
    def heard(event, duration, **values):
        if event == COMPILED:
            hooks.board.page[slots.TRACES] += 1

    module.register_event_duration_secs_listener(heard)


class Steps:
    """Counts training steps; where optax or Keras's fit tells of them, only those count."""

    def __init__(self, board) -> None:
        self.board, self.tracing, self.updates = board, [], False  # type: object, list[Jitted], bool

    def gradient(self) -> None:
        if self.tracing:
            self.tracing[0].trains = True
        else:
            self.stepped()

    def stepped(self) -> None:
        if not self.updates and not self.board.page[slots.FITS]:
            self.board.page[slots.STEP] += 1
            self.board.page[slots.PHASE] = slots.NUMBER["train"]


class Jitted:
    """What jax.jit returned, with its calls counted; everything else is handed on."""

    def __init__(self, inner, steps) -> None:
        self.__dict__.update(inner=inner, steps=steps, trains=False, __wrapped__=getattr(inner, "__wrapped__", inner))
        for name in ("__name__", "__qualname__", "__doc__", "__module__"):
            if hasattr(inner, name):
                self.__dict__[name] = getattr(inner, name)

    def __call__(self, *args, **kwargs):
        if self.trains and not self.steps.tracing:
            self.steps.stepped()
            return self.inner(*args, **kwargs)
        self.steps.tracing.append(self)
        try:
            return self.inner(*args, **kwargs)
        finally:
            self.steps.tracing.pop()
            if self.trains and not self.steps.tracing:
                self.steps.stepped()

    def __get__(self, owner, kind=None):
        return self if owner is None else self.inner.__get__(owner, kind)

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def __setattr__(self, name, value):
        if name == "trains":
            self.__dict__[name] = value
        else:
            setattr(self.inner, name, value)


def _top(hooks, module):
    steps = hooks.jax_steps = Steps(hooks.board)
    jit = module.jit

    def jitted(*args, **kwargs):
        made = jit(*args, **kwargs)
        if not args:  # jax.jit(static_argnums=...) gives a decorator
            return lambda function: Jitted(made(function), steps)
        return Jitted(made, steps)

    jitted.__name__, jitted.__doc__, jitted.__wrapped__ = "jit", jit.__doc__, jit
    module.jit = jitted
    for name in GRADIENTS:
        setattr(module, name, _noticed(getattr(module, name), steps))


def _noticed(original, steps):
    def transform(*args, **kwargs):
        function = original(*args, **kwargs)

        def differentiated(*inner, **options):
            steps.gradient()
            return function(*inner, **options)

        differentiated.__name__ = getattr(function, "__name__", "differentiated")
        differentiated.__wrapped__ = getattr(function, "__wrapped__", function)
        return differentiated

    transform.__name__, transform.__doc__, transform.__wrapped__ = original.__name__, original.__doc__, original
    return transform


def _update(hooks, module):
    def before(args, kwargs):
        steps = getattr(hooks, "jax_steps", None)
        if steps is not None and steps.tracing:  # inside of a jitted function: its calls are the steps
            return
        if steps is not None:
            steps.updates = True
        hooks.board.page[slots.STEP] += 1
        hooks.board.page[slots.PHASE] = slots.NUMBER["train"]

    hooks.wrap(module, "apply_updates", before)


TABLE = {
    "jax": _top,
    "jax._src.monitoring": _monitoring,
    "optax._src.update": _update,
}
