#!/usr/bin/env python3
"""Train one small network on handwritten digits: one trial of a sweep.

Its parameters are variables of its environment, and it reports its accuracy after each epoch, so that dlapp can compare
trials. It reads data/digits.csv.gz and writes output/accuracy.json and output/model.npz.
"""

import json
import os

# A trial has one core: more threads than that only take time from the others.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import dlapp_context
import numpy as np

HIDDEN = int(os.environ["HIDDEN"])
RATE = float(os.environ["RATE"])
BATCH = int(os.environ["BATCH"])
EPOCHS = int(os.environ.get("EPOCHS", "10"))


def load(path):
    """Images as float32, shape (n, 64), values 0 to 1, and their digits; shuffled the same way in every trial."""
    table = np.loadtxt(path, delimiter=",", dtype=np.uint8)
    table = table[np.random.default_rng(1).permutation(len(table))]
    return table[:, :64].astype(np.float32) / 16, table[:, 64].astype(np.int64)


def forward(net, images):
    """The hidden units' values, and the probability of each digit, shape (n, 10)."""
    units = np.maximum(images @ net["w1"] + net["b1"], 0)
    scores = units @ net["w2"] + net["b2"]
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return units, scores / scores.sum(axis=1, keepdims=True)


def accuracy(net, images, digits):
    """The share of images that are read right, 0 to 1."""
    return float((forward(net, images)[1].argmax(axis=1) == digits).mean())


def train_one_epoch(net, images, digits, rng):
    """One pass over the images in random order, by stochastic gradient descent on the cross-entropy."""
    order = rng.permutation(len(images))
    for start in range(0, len(order), BATCH):
        x, y = images[order[start : start + BATCH]], digits[order[start : start + BATCH]]
        units, error = forward(net, x)
        error[np.arange(len(y)), y] -= 1
        error /= len(y)
        back = (error @ net["w2"].T) * (units > 0)
        net["w2"] -= RATE * (units.T @ error)
        net["b2"] -= RATE * error.sum(axis=0)
        net["w1"] -= RATE * (x.T @ back)
        net["b1"] -= RATE * back.sum(axis=0)


def main():
    images, digits = load("data/digits.csv.gz")
    train, valid = slice(0, 1000), slice(1000, None)
    rng = np.random.default_rng(1)
    net = {
        "w1": (rng.standard_normal((64, HIDDEN)) * np.sqrt(2 / 64)).astype(np.float32),
        "b1": np.zeros(HIDDEN, np.float32),
        "w2": (rng.standard_normal((HIDDEN, 10)) * np.sqrt(2 / HIDDEN)).astype(np.float32),
        "b2": np.zeros(10, np.float32),
    }
    found = 0.0
    for epoch in range(1, EPOCHS + 1):
        train_one_epoch(net, images[train], digits[train], rng)
        found = accuracy(net, images[valid], digits[valid])
        dlapp_context.metrics(step=epoch, accuracy=found)
        if dlapp_context.should_stop():
            break
    os.makedirs("output", exist_ok=True)
    with open("output/accuracy.json", "w", encoding="utf-8") as file:
        json.dump({"hidden": HIDDEN, "rate": RATE, "batch": BATCH, "accuracy": found}, file)
    np.savez("output/model.npz", **net)
    print(f"{HIDDEN} units, rate {RATE:g}, batches of {BATCH}: {found:.1%}")


if __name__ == "__main__":
    main()
