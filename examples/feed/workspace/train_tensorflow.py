#!/usr/bin/env python3
"""A network of one layer learns the digits from a feed, with TensorFlow."""

import os

import dlapp_context
import tensorflow as tf

SAMPLE = {"pixels": tf.TensorSpec((), tf.string), "digit": tf.TensorSpec((), tf.string)}


def records():
    """Yield the samples of this container, without the names that are for people."""
    for one in dlapp_context.feed():
        yield {name: one[name] for name in SAMPLE}


def main():
    """Train on all epochs of the feed, and write how many images were seen, and the loss at the end."""
    weights, bias = tf.Variable(tf.zeros((64, 10))), tf.Variable(tf.zeros(10))
    seen, loss = 0, None
    for batch in tf.data.Dataset.from_generator(records, output_signature=SAMPLE).batch(60).prefetch(2):
        images = tf.cast(tf.io.decode_raw(batch["pixels"], tf.uint8), tf.float32) / 16
        digits = tf.strings.to_number(batch["digit"], tf.int32)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(digits, images @ weights + bias))
        for variable, gradient in zip((weights, bias), tape.gradient(loss, (weights, bias)), strict=True):
            variable.assign_sub(0.3 * gradient)
        seen += len(digits)
        dlapp_context.metrics(step=seen, loss=float(loss))
    os.makedirs("output", exist_ok=True)
    with open("output/result", "w") as file:
        print(seen, float(loss), file=file)


if __name__ == "__main__":
    main()
