"""Hooks on TensorFlow: functions traced, and the verbs of tf.data that hold elements.

Covers: shuffle, cache, prefetch, interleave and from_tensor_slices with the bytes of one element; traces.
Does not cover: Keras (keras.py).
"""

from penstock_inside import board as slots


def _element(dataset) -> int:
    """Bytes of one element as far as its spec says; unknown dimensions count as one."""
    total, pending = 0, [dataset.element_spec]
    while pending:
        spec = pending.pop()
        if isinstance(spec, dict):
            pending.extend(spec.values())
        elif isinstance(spec, (list, tuple)):
            pending.extend(spec)
        elif hasattr(spec, "shape") and spec.shape.rank is not None:
            count = 1
            for length in spec.shape.as_list():
                count *= length or 1
            total += count * max(1, spec.dtype.size)
    return total


def _number(value):
    return int(value) if isinstance(value, int) or hasattr(value, "numpy") else None


def _dataset(hooks, module):
    owner = module.DatasetV2

    def verb(name, argument, default=None):
        def before(args, kwargs):
            value = args[1] if len(args) > 1 else kwargs.get(argument, default)
            count = _number(args[0].cardinality())
            shown = value if isinstance(value, str) else _number(value) if value is not None else None
            hooks.note("tf.data." + name, value=shown, element=_element(args[0]), length=count)

        if hasattr(owner, name):
            hooks.wrap(owner, name, before)

    for name, argument in (("shuffle", "buffer_size"), ("cache", "filename"), ("prefetch", "buffer_size")):
        verb(name, argument)
    verb("interleave", "cycle_length")
    verb("map", "num_parallel_calls")
    verb("batch", "batch_size")


def _traced(hooks, module):
    def before(args, kwargs):
        hooks.board.page[slots.TRACES] += 1

    hooks.wrap(module, "func_graph_from_py_func", before)


TABLE = {
    "tensorflow.python.data.ops.dataset_ops": _dataset,
    "tensorflow.python.framework.func_graph": _traced,
}
