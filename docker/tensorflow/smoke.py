#!/usr/bin/env python3
"""Train something tiny: logistic regression by gradient tape, compiled to a graph. On the GPUs, if any are granted."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # without a driver it says at length that there is none

import tensorflow as tf

granted = [word for word in os.environ.get("NV_GPU", "").split(",") if word]
seen = tf.config.list_physical_devices("GPU")
assert len(seen) == len(granted), f"{len(seen)} GPUs seen, {len(granted)} granted"

tf.random.set_seed(0)
points = tf.random.normal((512, 2))
labels = tf.cast(tf.linalg.matvec(points, [2.0, -1.0]) > 0, tf.float32)
weights = tf.Variable(tf.zeros(2))


@tf.function
def step():
    with tf.GradientTape() as tape:
        scores = tf.linalg.matvec(points, weights)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, scores))
    weights.assign_sub(2.0 * tape.gradient(loss, weights))


for _ in range(100):
    step()
guess = tf.cast(tf.linalg.matvec(points, weights) > 0, tf.float32)
right = float(tf.reduce_mean(tf.cast(guess == labels, tf.float32)))

print(f"TensorFlow {tf.__version__}, GPUs {len(seen)}: {right:.1%} right")
assert right > 0.97
