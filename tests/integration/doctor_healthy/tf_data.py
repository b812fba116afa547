"""tf.data with small buffers."""

import tensorflow as tf

ds = tf.data.Dataset.range(2_000).map(lambda i: tf.fill([16], tf.cast(i, tf.float32)))
ds = ds.shuffle(256).batch(32).prefetch(2)
total = 0.0
for batch in ds:
    total += float(tf.reduce_sum(batch))
print("total", total)
