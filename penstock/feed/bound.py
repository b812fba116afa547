"""An existing tf.data pipeline, kept inside the memory that is really there.

Covers: `bound`: tf.data's own autotuner with a budget from the container, and an account of what it may hold.
Does not cover: replacing the pipeline (read/, plan/).
"""

from __future__ import annotations

from typing import Any

from penstock.core.errors import InvalidInput, MissingExtra
from penstock.core.sizes import Size, parse_size
from penstock.memory.account import add_holder
from penstock.memory.limits import current_limit, current_reserve
from penstock.memory.meter import Meter
from penstock.memory.watchdog import plan_budget


def bound(dataset: Any, memory: Size | None = None) -> Any:
    """The same tf.data.Dataset, told how much memory its buffers may take.

    TensorFlow takes half of the *host's* free memory for its autotuner and starts 16 parallel calls at once; in a
    container both kill. Here the budget is `memory`, or what the limit in force leaves beside this process, and calls
    start with one.
    Buffers with a fixed size (`shuffle(100_000)`, `prefetch(50)`) are not the autotuner's and stay as they are.

    >>> dataset = bound(files.map(decode, num_parallel_calls=tf.data.AUTOTUNE), "500MB")  # doctest: +SKIP
    """
    try:
        import tensorflow as tf
    except ImportError as error:
        raise MissingExtra(what="bound()", extra="tensorflow") from error
    if not isinstance(dataset, tf.data.Dataset):
        raise InvalidInput(f"bound needs a tf.data.Dataset, not {type(dataset).__name__}.")
    if memory is None:
        nbytes = plan_budget(current_limit().nbytes, Meter().read().nbytes, current_reserve())
    else:
        nbytes = parse_size(memory)
    options = tf.data.Options()
    options.autotune.enabled = True
    options.autotune.ram_budget = nbytes
    options.autotune.initial_parallelism = 1
    add_holder("tf.data (its own budget)", lambda: nbytes)
    return dataset.with_options(options)
