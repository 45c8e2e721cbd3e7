#!/usr/bin/env python3
"""Train something tiny: a small convolutional network tells where a square lies. On the GPUs, if any are granted."""

import os

import torch
import torchvision
from torch import nn

torch.manual_seed(0)
device = "cpu"
if os.environ.get("NV_GPU"):
    device = "cuda"
    assert torch.cuda.device_count() == len(os.environ["NV_GPU"].split(",")), f"{torch.cuda.device_count()} GPUs seen"

places = torch.randint(0, 4, (512,))
images = 0.3 * torch.randn(512, 1, 8, 8)
for image, place in zip(images, places.tolist(), strict=True):
    top, left = 4 * (place // 2), 4 * (place % 2)
    image[0, top : top + 4, left : left + 4] += 1
images, places = images.to(device), places.to(device)

net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 4)).to(device)
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
for _ in range(30):
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(images), places).backward()
    optimizer.step()
right = (net(images).argmax(1) == places).float().mean().item()

print(f"PyTorch {torch.__version__}, torchvision {torchvision.__version__}, {device}: {right:.1%} right")
assert right > 0.97
