"""The data and the network that both programs train."""

import gzip

import numpy as np
import tensorflow as tf

BATCH = 120


def load(path):
    """Images, shape (n, 64), values 0 to 1, and their digits; shuffled the same way in every process."""
    with gzip.open(path, "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    table = table[np.random.default_rng(1).permutation(len(table))]
    return (table[:, :64] / 16).astype(np.float32), table[:, 64]


def new_weights():
    """Weights of 64 pixels -> 64 units -> 10 digits. Call it in the scope of a strategy."""
    rng = np.random.default_rng(1)
    return [
        tf.Variable((rng.standard_normal((64, 64)) * 0.18).astype(np.float32)),
        tf.Variable(tf.zeros(64)),
        tf.Variable((rng.standard_normal((64, 10)) * 0.18).astype(np.float32)),
        tf.Variable(tf.zeros(10)),
    ]


def losses(weights, images, digits):
    """The loss of each image."""
    units = tf.nn.relu(images @ weights[0] + weights[1])
    return tf.nn.sparse_softmax_cross_entropy_with_logits(digits, units @ weights[2] + weights[3])
