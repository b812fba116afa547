"""Volumes are read in bursts, with pauses for validation between them: AUTOTUNE prefetches more and more of them."""

import time

import tensorflow as tf


def volume(number):
    return tf.fill((100, 100, 100), tf.cast(number % 7, tf.float32))


numbers = tf.data.Dataset.range(10_000_000)
volumes = numbers.map(volume, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
feed = iter(volumes)
total = tf.Variable(0.0)
for epoch in range(14):
    for _ in range(300):
        total.assign_add(next(feed)[0, 0, 0])
    print("epoch", epoch, float(total), flush=True)
    time.sleep(2)  # validation, elsewhere
