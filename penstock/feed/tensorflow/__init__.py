"""Hand-over to TensorFlow.

Covers: `door.py` (what `ds.tensorflow()` returns), `queue.py` (the way into graphs), `leaves.py` (arrays to tensors).
Does not cover: what is known of elements beforehand (feed/spec.py).
"""
