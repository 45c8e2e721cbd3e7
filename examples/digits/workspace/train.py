#!/usr/bin/env python3
"""Train small networks on handwritten digits; each container takes its share of the hyper-parameters.

It reads data/digits.csv.gz and writes into output/: accuracy.json, learning_curve.png and model.npz of the best
network that this container found. It knows nothing of dlapp but two variables, CONTAINER_INDEX and NUM_CONTAINERS, so
``./train.py`` alone runs as well, if data/ is there.

A network has one hidden layer. The candidates differ in the size of that layer and in the learning rate. The best is
chosen on a validation set; its accuracy is then measured once on a test set that no choice has seen.
"""

import os
import signal
import sys

stop_asked = False


def ask_to_stop(signum, frame):
    """dlapp-softkill sends SIGTERM: finish the epoch, keep what there is."""
    global stop_asked
    stop_asked = True


signal.signal(signal.SIGTERM, ask_to_stop)
INDEX = int(os.environ.get("CONTAINER_INDEX", "0"))
CONTAINERS = int(os.environ.get("NUM_CONTAINERS", "1"))
print(f"digits: container {INDEX} of {CONTAINERS}", flush=True)  # before the slow imports: a sign of life at once

# A container asked for one core: more threads than that only take time from the neighbours.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse  # noqa: E402
import json  # noqa: E402

import numpy as np  # noqa: E402

HIDDEN = (16, 32, 64, 128)
RATES = (0.02, 0.05, 0.1, 0.2)
BATCH = 32
SEED = 1


def load(path):
    """Images as float32, shape (n, 64), values 0 to 1, and their digits; shuffled the same way in every container."""
    table = np.loadtxt(path, delimiter=",", dtype=np.uint8)
    table = table[np.random.default_rng(SEED).permutation(len(table))]
    return table[:, :64].astype(np.float32) / 16, table[:, 64].astype(np.int64)


def new_network(hidden, rng):
    """Weights for 64 pixels -> ``hidden`` units -> 10 digits, scaled as the units (ReLU) like it."""
    return {
        "w1": (rng.standard_normal((64, hidden)) * np.sqrt(2 / 64)).astype(np.float32),
        "b1": np.zeros(hidden, np.float32),
        "w2": (rng.standard_normal((hidden, 10)) * np.sqrt(2 / hidden)).astype(np.float32),
        "b2": np.zeros(10, np.float32),
    }


def forward(net, images):
    """The hidden units' values, and the probability of each digit, shape (n, 10)."""
    units = np.maximum(images @ net["w1"] + net["b1"], 0)
    scores = units @ net["w2"] + net["b2"]
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return units, scores / scores.sum(axis=1, keepdims=True)


def accuracy(net, images, digits):
    """The share of images that are read right, 0 to 1."""
    return float((forward(net, images)[1].argmax(axis=1) == digits).mean())


def train_one_epoch(net, images, digits, rate, rng):
    """One pass over the images in random order, by plain stochastic gradient descent on the cross-entropy."""
    order = rng.permutation(len(images))
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        x, y = images[chosen], digits[chosen]
        units, error = forward(net, x)
        error[np.arange(len(y)), y] -= 1
        error /= len(y)
        back = (error @ net["w2"].T) * (units > 0)
        net["w2"] -= rate * (units.T @ error)
        net["b2"] -= rate * error.sum(axis=0)
        net["w1"] -= rate * (x.T @ back)
        net["b1"] -= rate * back.sum(axis=0)


def draw(tried, path):
    """Validation accuracy over the epochs, one line for each candidate."""
    import matplotlib

    matplotlib.use("Agg")  # no display in a container
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for one in tried:
        axes.plot(
            range(1, len(one["curve"]) + 1),
            [100 * value for value in one["curve"]],
            label=f"{one['hidden']} units, rate {one['rate']:g}",
        )
    axes.set_xlabel("epoch")
    axes.set_ylabel("read right in the validation set [%]")
    axes.set_ylim(top=100)
    axes.set_title(f"Handwritten digits, container {INDEX} of {CONTAINERS}")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description="Train small networks on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=60)
    epochs = parser.parse_args().epochs

    images, digits = load("data/digits.csv.gz")
    train, valid, test = slice(0, 1000), slice(1000, 1400), slice(1400, None)
    candidates = [(hidden, rate) for rate in RATES for hidden in HIDDEN][INDEX::CONTAINERS]
    if not candidates:
        sys.exit(f"nothing to do: {CONTAINERS} containers share {len(HIDDEN) * len(RATES)} candidates")

    tried, best, best_net = [], None, None
    for hidden, rate in candidates:
        rng = np.random.default_rng(SEED)
        net, curve = new_network(hidden, rng), []
        while len(curve) < epochs and not (stop_asked and curve):
            train_one_epoch(net, images[train], digits[train], rate, rng)
            curve.append(accuracy(net, images[valid], digits[valid]))
        tried.append({"hidden": hidden, "rate": rate, "validation": curve[-1], "curve": curve})
        print(f"{hidden:4d} units, rate {rate:g}: {curve[-1]:.1%} after {len(curve)} epochs", flush=True)
        if best is None or curve[-1] > best["validation"]:
            best, best_net = tried[-1], net
        if stop_asked:
            print("asked to stop: keeping what there is", flush=True)
            break

    result = {
        "container": INDEX,
        "accuracy": accuracy(best_net, images[test], digits[test]),
        "best": {name: best[name] for name in ("hidden", "rate", "validation")},
        "tried": [{name: one[name] for name in ("hidden", "rate", "validation")} for one in tried],
    }
    os.makedirs("output", exist_ok=True)
    with open("output/accuracy.json", "w", encoding="utf-8") as file:
        json.dump(result, file, indent=2)
        file.write("\n")
    np.savez("output/model.npz", **best_net)
    draw(tried, "output/learning_curve.png")
    print(f"accuracy on the test set: {result['accuracy']:.1%}", flush=True)


if __name__ == "__main__":
    main()
