#!/usr/bin/env python3
"""Train a network on handwritten digits with MultiWorkerMirroredStrategy.

The strategy finds the other workers in TF_CONFIG; without it, it is alone. Each worker takes an equal share of every
batch. Worker 0 writes output/losses.json.
"""

import argparse
import json
import os

import tensorflow as tf
from digits import BATCH, load, losses, new_weights

RATE = 0.5


def main():
    parser = argparse.ArgumentParser(description="Train a network on handwritten digits, in several processes.")
    parser.add_argument("--epochs", type=int, default=5)
    epochs = parser.parse_args().epochs
    os.makedirs("output", exist_ok=True)

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    worker, workers = strategy.cluster_resolver.task_id or 0, strategy.num_replicas_in_sync
    print(f"worker {worker} of {workers}", flush=True)
    images, digits = load("data/digits.csv.gz")
    with strategy.scope():
        weights = new_weights()

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(losses(weights, x, y)) / BATCH
        every = tf.distribute.get_replica_context().all_reduce("sum", [loss, *tape.gradient(loss, weights)])
        for place in range(len(weights)):
            weights[place].assign_sub(RATE * every[1 + place])
        return every[0]

    @tf.function
    def distributed_step(x, y):
        return strategy.run(step, (x, y))

    share, found = BATCH // workers, []
    for epoch in range(epochs):
        total, batches = 0.0, len(images) // BATCH
        for batch in range(batches):
            begin = batch * BATCH + worker * share
            part = slice(begin, begin + share)
            loss = distributed_step(tf.constant(images[part]), tf.constant(digits[part]))
            total += float(strategy.experimental_local_results(loss)[0]) / batches
        found.append(total)
        print(f"epoch {epoch}: loss {total:.5f}", flush=True)
    if worker == 0:
        with open("output/losses.json", "w", encoding="utf-8") as file:
            json.dump(found, file)


if __name__ == "__main__":
    main()
