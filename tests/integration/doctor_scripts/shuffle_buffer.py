"""A shuffle buffer of ten thousand pictures."""

import tensorflow as tf

ds = tf.data.Dataset.range(20_000).map(lambda i: tf.fill([128, 128, 3], tf.cast(i, tf.float32)))
ds = ds.shuffle(10_000).batch(32)
for step, batch in enumerate(ds.take(60)):
    if step % 20 == 0:
        print("step", step, batch.shape)
