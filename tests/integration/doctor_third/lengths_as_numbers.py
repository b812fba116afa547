"""Sequences of any length go through a tf.function, and their length as a Python number."""

import tensorflow as tf

cells = [tf.keras.layers.Dense(24, activation="relu") for _ in range(12)]
head = tf.keras.layers.Dense(1)
opt = tf.keras.optimizers.SGD(1e-3)


@tf.function
def train_step(batch, length):
    with tf.GradientTape() as tape:
        h = batch[:, :length]
        for cell in cells:
            h = cell(h) + tf.reduce_mean(h, axis=1, keepdims=True)
        loss = tf.reduce_mean(tf.square(head(h)))
    variables = [v for cell in cells for v in cell.trainable_variables] + head.trainable_variables
    opt.apply_gradients(zip(tape.gradient(loss, variables), variables))
    return loss


for n in range(3000):
    length = 8 + n
    value = train_step(tf.random.normal((2, length + n % 3, 24)), length)
    if n % 50 == 0:
        print(n, float(value), flush=True)
