#!/usr/bin/env python3
"""Train something tiny: a small Keras network that tells where a square lies. On the GPUs, if any are granted."""

import os

import keras
import numpy as np

assert keras.backend.backend() == "jax", keras.backend.backend()
if os.environ.get("NV_GPU"):
    seen = len(keras.distribution.list_devices("gpu"))
    assert seen == len(os.environ["NV_GPU"].split(",")), f"{seen} GPUs seen"

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
places = rng.integers(0, 4, 512)
images = 0.3 * rng.standard_normal((512, 8, 8, 1)).astype("float32")
for image, place in zip(images, places, strict=True):
    top, left = 4 * (place // 2), 4 * (place % 2)
    image[top : top + 4, left : left + 4] += 1

net = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(8, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(4),
    ]
)
net.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
net.fit(images, places, epochs=10, verbose=0)
right = net.evaluate(images, places, verbose=0)[1]

print(f"Keras {keras.__version__} on {keras.backend.backend()}: {right:.1%} right")
assert right > 0.97
