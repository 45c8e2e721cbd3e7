#!/usr/bin/env python3
"""Train a network on handwritten digits with DistributedDataParallel, on CPUs (gloo) or GPUs (nccl).

It reads data/digits.csv.gz, and rank 0 writes output/losses.json. With framework=pytorch or torchrun the variables are
there that init_process_group reads; without them it runs alone. Each rank takes an equal share of every batch, so the
losses are those of one process on whole batches.

Rank 0 saves model/state.pt after each epoch and reports it. When the ranks are started again, each finds that file in
DLAPP_RESUME_FROM, and they go on with the next epoch.
"""

import argparse
import gzip
import json
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

BATCH = 120  # a multiple of 2, 3, 4, 5 and 6 ranks


def load(path):
    """Images, shape (n, 64), values 0 to 1, and their digits; shuffled the same way in every rank."""
    with gzip.open(path, "rt") as file:
        table = torch.tensor([[int(value) for value in line.split(",")] for line in file])
    table = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(1))]
    return table[:, :64].double() / 16, table[:, 64]


def save(state):
    """Replace model/state.pt, and report that it is complete."""
    os.makedirs("model", exist_ok=True)
    torch.save(state, "model/state.new")
    os.replace("model/state.new", "model/state.pt")
    with open(os.environ.get("DLAPP_REPORT", os.devnull), "a", encoding="utf-8") as report:
        report.write('{"checkpoint": "model"}\n')


def main():
    parser = argparse.ArgumentParser(description="Train a network on handwritten digits, in several processes.")
    parser.add_argument("--epochs", type=int, default=5)
    epochs = parser.parse_args().epochs
    os.makedirs("output", exist_ok=True)

    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.manual_seed(1)
    network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)).double().to(device)
    model = network
    if ranks > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        model = DistributedDataParallel(model)
    print(f"rank {rank} of {ranks}", flush=True)

    images, digits = load("data/digits.csv.gz")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    share, losses = BATCH // ranks, []
    if "DLAPP_RESUME_FROM" in os.environ:
        state = torch.load(os.path.join(os.environ["DLAPP_RESUME_FROM"], "state.pt"), map_location=device)
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        losses = state["losses"]
    for epoch in range(len(losses), epochs):
        total = torch.zeros((), dtype=torch.float64, device=device)
        batches = len(images) // BATCH
        for batch in range(batches):
            begin = batch * BATCH + rank * share
            x, y = images[begin : begin + share].to(device), digits[begin : begin + share].to(device)
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() / batches
        if ranks > 1:
            dist.all_reduce(total)
        losses.append(total.item() / ranks)
        if rank == 0:
            print(f"epoch {epoch}: loss {losses[-1]:.6f}", flush=True)
            save({"network": network.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses})
    if rank == 0:
        with open("output/losses.json", "w", encoding="utf-8") as file:
            json.dump(losses, file)
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
