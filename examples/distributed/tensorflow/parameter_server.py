#!/usr/bin/env python3
"""Train a network on handwritten digits with ParameterServerStrategy: one program for all roles.

The chief hands out steps, workers compute them, parameter servers hold the weights. Workers and parameter servers serve
until they are ended. The chief writes output/losses.json.
"""

import argparse
import json
import os

import tensorflow as tf
from digits import BATCH, load, losses, new_weights

RATE = 0.2


def serve(resolver):
    """Be a worker or a parameter server."""
    print(f"{resolver.task_type} {resolver.task_id}", flush=True)
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    server.join()


def coordinate(resolver, epochs):
    """Be the chief."""
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weights = new_weights()

    def dataset():
        images, digits = load(os.path.join(os.getcwd(), "data/digits.csv.gz"))
        return tf.data.Dataset.from_tensor_slices((images, digits)).repeat().batch(BATCH)

    @tf.function
    def step(iterator):
        x, y = next(iterator)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(losses(weights, x, y))
        gradients = tape.gradient(loss, weights)
        for place in range(len(weights)):
            weights[place].assign_sub(RATE * gradients[place])
        return loss

    batches = iter(coordinator.create_per_worker_dataset(dataset))
    found = []
    for epoch in range(epochs):
        steps = [coordinator.schedule(step, args=(batches,)) for _ in range(14)]
        coordinator.join()
        found.append(sum(float(one.fetch()) for one in steps) / len(steps))
        print(f"epoch {epoch}: loss {found[-1]:.5f}", flush=True)
    with open("output/losses.json", "w", encoding="utf-8") as file:
        json.dump(found, file)


def main():
    parser = argparse.ArgumentParser(description="Train a network on handwritten digits, with parameter servers.")
    parser.add_argument("--epochs", type=int, default=10)
    epochs = parser.parse_args().epochs
    os.makedirs("output", exist_ok=True)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        serve(resolver)
    else:
        coordinate(resolver, epochs)


if __name__ == "__main__":
    main()
