"""Trains a small vision transformer on scikit-learn's handwritten digits.

An ordinary PyTorch script: nothing here knows of libmesa. Run it as it is, or with
LD_PRELOAD=build/libmesa.so in front, and compare the last two lines.

SPDX-License-Identifier: MIT
"""

import argparse
import resource
import time

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

IMAGE_PIXELS = 32  # the digits are 8x8; upscaled, they make 64 patches
PATCH_PIXELS = 4
CLASSES = 10


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.project(y.transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    def __init__(self, width, depth, heads):
        super().__init__()
        patches = (IMAGE_PIXELS // PATCH_PIXELS) ** 2
        self.embed = nn.Conv2d(1, width, kernel_size=PATCH_PIXELS, stride=PATCH_PIXELS)
        self.position = nn.Parameter(0.02 * torch.randn(1, patches, width))
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(patches * width, CLASSES)

    def forward(self, images):
        x = self.embed(images).flatten(2).transpose(1, 2) + self.position
        x = self.norm(self.blocks(x))
        return self.head(x.flatten(1))


def load_data():
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    images = F.interpolate(images, size=IMAGE_PIXELS, mode="bilinear")
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels))
    train, test = order[360:], order[:360]
    return images[train], labels[train], images[test], labels[test]


def accuracy(model, images, labels):
    model.eval()
    with torch.no_grad():
        hits = sum((model(x).argmax(1) == y).sum().item()
                   for x, y in zip(images.split(120), labels.split(120)))
    return hits / len(labels)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--rate", type=float, default=2e-3)
    options = parser.parse_args()

    torch.manual_seed(0)
    images, labels, test_images, test_labels = load_data()
    model = VisionTransformer(options.width, options.depth, heads=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, weight_decay=0.05)
    steps = options.epochs * -(-len(labels) // options.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.rate, total_steps=steps)

    for epoch in range(1, options.epochs + 1):
        started = time.perf_counter()
        model.train()
        loss_sum = 0.0
        for batch in torch.randperm(len(labels)).split(options.batch):
            loss = F.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            loss_sum += loss.item() * len(batch)
        print(f"epoch {epoch}: loss {loss_sum / len(labels):.3f}, "
              f"{time.perf_counter() - started:.1f} s", flush=True)

    print(f"test accuracy: {100 * accuracy(model, test_images, test_labels):.1f} %")
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"peak memory: {peak_kib / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
