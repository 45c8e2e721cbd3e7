#!/usr/bin/env python3
"""Train something tiny: logistic regression in numpy. With GPUs granted, CUDA and cuDNN must be there and see them."""

import ctypes
import os

import numpy as np

rng = np.random.default_rng(0)
points = rng.standard_normal((512, 2))
labels = (points @ [2.0, -1.0] > 0).astype(float)
weights = np.zeros(2)
for _ in range(200):
    guess = 1 / (1 + np.exp(-points @ weights))
    weights -= 0.5 * points.T @ (guess - labels) / len(labels)
right = float(((points @ weights > 0) == labels).mean())

devices = ctypes.c_int(0)
if os.environ.get("NV_GPU"):
    cudart, cudnn = ctypes.CDLL("libcudart.so.13"), ctypes.CDLL("libcudnn.so.9")
    error = cudart.cudaGetDeviceCount(ctypes.byref(devices))
    assert error == 0, f"cudaGetDeviceCount: error {error}"
    assert devices.value == len(os.environ["NV_GPU"].split(",")), f"{devices.value} GPUs seen"
    cudnn.cudnnGetVersion.restype = ctypes.c_size_t
    print(f"cuDNN {cudnn.cudnnGetVersion()}")
print(f"numpy {np.__version__}, GPUs {devices.value}: {right:.1%} right")
assert right > 0.97
