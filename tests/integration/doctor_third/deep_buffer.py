"""A generator of images is batched, and many batches are prefetched."""

import numpy as np
import tensorflow as tf


def images():
    rng = np.random.default_rng(2)
    while True:
        yield rng.integers(0, 255, (96, 96, 3), dtype=np.uint8), rng.integers(0, 10)


signature = (tf.TensorSpec((96, 96, 3), tf.uint8), tf.TensorSpec((), tf.int64))
ds = tf.data.Dataset.from_generator(images, output_signature=signature)
ds = ds.batch(32).map(lambda x, y: (tf.cast(x, tf.float32) / 255.0, y)).prefetch(500)

model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv2D(16, 5, strides=2),
        tf.keras.layers.Conv2D(16, 5, strides=2),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(10),
    ]
)
loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
opt = tf.keras.optimizers.SGD()
for step, (x, y) in enumerate(ds.take(1200)):
    for _ in range(6):
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x))
        opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    if step % 20 == 0:
        print(step, float(loss), flush=True)
