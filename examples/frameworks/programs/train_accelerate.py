"""A line, fitted by a loop with accelerate; it writes to out."""

import argparse
import os
import time

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--pause", type=float, default=0.0, help="seconds before each epoch")
args = parser.parse_args()

# Without a GPU processes do not look for each other unless they are told that there is none.
accelerator = Accelerator(cpu=not torch.cuda.is_available())
inputs = torch.linspace(-1, 1, 64).reshape(-1, 1)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = DataLoader(TensorDataset(inputs, 3 * inputs + 1), batch_size=8)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
former = sorted(os.listdir("out"))[-1] if os.path.isdir("out") else None
if former is not None:
    accelerator.load_state(f"out/{former}")
for epoch in range(0 if former is None else int(former) + 1, args.epochs):
    time.sleep(args.pause)
    for batch, targets in data:
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.mse_loss(model(batch), targets))
        optimizer.step()
    accelerator.save_state(f"out/{epoch:03}")
weight = round(accelerator.unwrap_model(model).weight.item(), 0)
print("rank", accelerator.process_index, "of", accelerator.num_processes, "weight", weight, "from", former)
