"""A pipeline is put together by a function with switches; one switch keeps decoded spectrograms in memory."""

from dataclasses import dataclass

import tensorflow as tf


@dataclass
class Config:
    rows: int = 6_000
    batch_size: int = 32
    cache: bool = True
    epochs: int = 2


def spectrogram(seed):
    wave = tf.random.stateless_normal([256 * 128], seed=tf.stack([seed, 1]))
    return tf.reshape(wave, [256, 128]), seed % 8


def make_dataset(cfg, training):
    ds = tf.data.Dataset.range(cfg.rows).map(spectrogram, num_parallel_calls=2)
    if cfg.cache:
        ds = ds.cache()
    if training:
        ds = ds.shuffle(64)
    return ds.batch(cfg.batch_size).prefetch(2)


def main(cfg):
    train = make_dataset(cfg, training=True)
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((256, 128)),
            tf.keras.layers.GlobalAveragePooling1D(),
            tf.keras.layers.Dense(8, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(train, epochs=cfg.epochs, verbose=2)


if __name__ == "__main__":
    main(Config())
