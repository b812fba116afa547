"""Several processes train one Keras model on a table: torchrun --nproc-per-node=2 examples/torchrun_table.py

Each rank reads its own part; one step is that of all ranks' rows. Killed ranks go on from the last checkpoint.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "torch")


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--data", required=True, help="CSV with a column `label`")
    words.add_argument("--checkpoint", required=True, help="folder that all ranks see")
    words.add_argument("--epochs", type=int, default=2)
    asked = words.parse_args()

    from penstock.distribute.join import join

    world = join("torch")
    import keras

    import penstock as ps

    ds = ps.read_csv(asked.data, label="label").shuffle(seed=1).batch(64)
    model = keras.Sequential([keras.layers.Dense(32, activation="relu"), keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    history = ps.fit(model, ds, epochs=asked.epochs, checkpoint=asked.checkpoint, checkpoint_steps=200, resume=True)
    if world.rank == 0:
        print({name: round(values[-1], 4) for name, values in history.history.items()})


if __name__ == "__main__":
    main()
