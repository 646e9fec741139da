"""Keeps $DAY_DEVICE busy with products of matrices until it is killed, so that other processes must share it."""

import os

import torch

DEVICE = os.environ["DAY_DEVICE"]


def main():
    size = 4096 if DEVICE == "cuda" else 256
    torch.set_num_threads(1)
    a = torch.randn(size, size, device=DEVICE)
    print("busy", flush=True)
    while True:
        for _ in range(8):
            a = torch.nn.functional.normalize(a @ a)
        if DEVICE == "cuda":
            torch.cuda.synchronize()


main()
