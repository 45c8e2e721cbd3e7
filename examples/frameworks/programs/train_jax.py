"""A line, fitted by JAX; each process has the gradient of its rows, and process 0 writes to out."""

import argparse
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=100)
parser.add_argument("--pause", type=float, default=0.0, help="seconds before each epoch")
args = parser.parse_args()

jax.distributed.initialize()
number, count = jax.process_index(), jax.process_count()
inputs = jnp.linspace(-1, 1, 64)[number::count]


@jax.jit
def gradient(line):
    return jax.grad(lambda line: jnp.mean((line[0] * inputs + line[1] - 3 * inputs - 1) ** 2))(line)


former = "out/state.npz" if os.path.exists("out/state.npz") else None
state = np.load(former) if former is not None else {"line": np.zeros(2), "epoch": 0}
line = jnp.array(state["line"], dtype=jnp.float32)
for epoch in range(int(state["epoch"]), args.epochs):
    time.sleep(args.pause)
    line -= 0.3 * multihost_utils.process_allgather(gradient(line)).reshape(count, 2).mean(axis=0)
    if number == 0:
        os.makedirs("out", exist_ok=True)
        np.savez("out/new.npz", line=line, epoch=epoch + 1)
        os.replace("out/new.npz", "out/state.npz")
print("rank", number, "of", count, "weight", round(float(line[0]), 1), "from", former)
