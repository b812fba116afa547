"""tf.data mixes decoded pictures in a large buffer before batching."""

import tensorflow as tf


def picture(number):
    return tf.fill([256, 256, 3], tf.cast(number % 255, tf.float32)), number % 10


pictures = tf.data.Dataset.range(20_000).map(picture)
training = pictures.repeat().shuffle(buffer_size=8_000, seed=3).batch(16).take(400)
seen = 0
for pixels, labels in training:
    seen += int(labels.shape[0])
print("seen", seen)
