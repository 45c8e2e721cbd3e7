#!/usr/bin/env python3
"""A network of one layer learns the digits from a feed, with PyTorch."""

import os

import dlapp_context
import torch
from torch.utils.data import DataLoader, IterableDataset


class Records(IterableDataset):
    """The samples of this container; each worker of the DataLoader reads its own part."""

    def __iter__(self):
        return iter(dlapp_context.feed())


def batch(samples):
    """Images, shape (n, 64), values 0 to 1, and their digits."""
    pixels = torch.tensor([list(one["pixels"]) for one in samples], dtype=torch.float32)
    return pixels / 16, torch.tensor([int(one["digit"]) for one in samples])


def main():
    """Train on all epochs of the feed, and write how many images were seen, and the loss at the end."""
    torch.manual_seed(1)
    model = torch.nn.Linear(64, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    seen, loss = 0, None
    for images, digits in DataLoader(Records(), batch_size=60, collate_fn=batch, num_workers=2):
        loss = torch.nn.functional.cross_entropy(model(images), digits)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += len(digits)
        dlapp_context.metrics(step=seen, loss=loss)
    os.makedirs("output", exist_ok=True)
    with open("output/result", "w") as file:
        print(seen, float(loss), file=file)


if __name__ == "__main__":
    main()
