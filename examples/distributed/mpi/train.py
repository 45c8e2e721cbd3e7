#!/usr/bin/env python3
"""Train a network on handwritten digits in several processes of MPI, which add their gradients around a ring.

It reads data/digits.csv.gz, and rank 0 writes output/losses.json. Start it with mpirun; without it, it runs alone. Each
rank takes an equal share of every batch, so the losses are those of one process on whole batches.
"""

import argparse
import gzip
import json
import os

import numpy as np
from mpi4py import MPI

BATCH = 120  # a multiple of 2, 3, 4, 5 and 6 ranks


def load(path):
    """Images, shape (n, 64), values 0 to 1, and their digits; shuffled the same way in every rank."""
    with gzip.open(path, "rt") as file:
        table = np.array([[int(value) for value in line.split(",")] for line in file])
    table = table[np.random.default_rng(1).permutation(len(table))]
    return table[:, :64] / 16, table[:, 64]


def ring_allreduce(comm, values):
    """Add the values of all ranks, in place: each rank sends to the next one, 2 (ranks - 1) parts in all."""
    rank, ranks = comm.rank, comm.size
    parts = np.array_split(values, ranks)  # views
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    for step in range(ranks - 1):  # then each rank has the sum of one part
        came = np.empty_like(parts[(rank - step - 1) % ranks])
        comm.Sendrecv(parts[(rank - step) % ranks], after, recvbuf=came, source=before)
        parts[(rank - step - 1) % ranks] += came
    for step in range(ranks - 1):
        came = np.empty_like(parts[(rank - step) % ranks])
        comm.Sendrecv(parts[(rank - step + 1) % ranks], after, recvbuf=came, source=before)
        parts[(rank - step) % ranks][:] = came


def gradient(weights, x, y):
    """Loss of a linear classifier on a share of a batch, and the gradient: both divided by the whole batch's size."""
    scores = x @ weights[:64] + weights[64]
    scores -= scores.max(axis=1, keepdims=True)
    chances = np.exp(scores)
    chances /= chances.sum(axis=1, keepdims=True)
    loss = -np.log(chances[np.arange(len(y)), y]).sum() / BATCH
    chances[np.arange(len(y)), y] -= 1
    return loss, np.vstack([x.T @ chances, chances.sum(axis=0)]) / BATCH


def main():
    parser = argparse.ArgumentParser(description="Train a network on handwritten digits, in several processes.")
    parser.add_argument("--epochs", type=int, default=5)
    epochs = parser.parse_args().epochs
    os.makedirs("output", exist_ok=True)

    comm = MPI.COMM_WORLD
    print(f"rank {comm.rank} of {comm.size} in container {os.environ.get('CONTAINER_INDEX', '0')}", flush=True)
    images, digits = load("data/digits.csv.gz")
    weights = np.zeros((65, 10))
    share, losses = BATCH // comm.size, []
    for epoch in range(epochs):
        total, batches = 0.0, len(images) // BATCH
        for batch in range(batches):
            begin = batch * BATCH + comm.rank * share
            loss, change = gradient(weights, images[begin : begin + share], digits[begin : begin + share])
            summed = np.append(change, loss)
            ring_allreduce(comm, summed)
            weights -= 0.5 * summed[:-1].reshape(weights.shape)
            total += summed[-1] / batches
        losses.append(total)
        if comm.rank == 0:
            print(f"epoch {epoch}: loss {losses[-1]:.6f}", flush=True)
    if comm.rank == 0:
        with open("output/losses.json", "w", encoding="utf-8") as file:
            json.dump(losses, file)


if __name__ == "__main__":
    main()
