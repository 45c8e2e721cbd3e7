#!/usr/bin/env python3
"""Train something tiny: logistic regression as a PyTensor graph. On the GPUs, by JAX, if any are granted."""

import os

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt

mode = "NUMBA"
if os.environ.get("NV_GPU"):
    mode = "JAX"
    assert jax.default_backend() == "gpu", jax.default_backend()
    assert jax.device_count() == len(os.environ["NV_GPU"].split(",")), f"{jax.device_count()} GPUs seen"

rng = np.random.default_rng(0)
points = rng.standard_normal((512, 2))
labels = (points @ [2.0, -1.0] > 0).astype(float)

x, y, w = pt.matrix("x"), pt.vector("y"), pt.vector("w")
loss = pt.softplus((1 - 2 * y) * (x @ w)).mean()
step = pytensor.function([x, y, w], [loss, w - 2.0 * pt.grad(loss, w)], mode=mode)
weights, losses = np.zeros(2), []
for _ in range(100):
    value, weights = step(points, labels, weights)
    losses.append(float(value))
right = float(((points @ np.asarray(weights) > 0) == labels).mean())

print(f"PyTensor {pytensor.__version__} by {mode}: loss {losses[0]:.3f} to {losses[-1]:.3f}, {right:.1%} right")
assert right > 0.97
