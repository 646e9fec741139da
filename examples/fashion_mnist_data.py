"""Fashion-MNIST as NumPy arrays, for the examples."""

import gzip
import os
import struct
import sys

import numpy as np

DIRECTORY = "/usr/share/datasets/fashion-mnist"


def read_idx(path):
    """Reads a gzipped idx file of unsigned bytes."""
    with gzip.open(path) as file:
        zero, kind, dims = struct.unpack(">HBB", file.read(4))
        if (zero, kind) != (0, 8):
            sys.exit(f"{path} is not an idx file of unsigned bytes")
        shape = struct.unpack(f">{dims}I", file.read(4 * dims))
        return np.frombuffer(file.read(), dtype=np.uint8).reshape(shape)


def load(data_dir, part, limit):
    """The first `limit` normalized images [n, 28, 28, 1] and labels [n] of
    `part`, train or t10k."""
    paths = [
        os.path.join(data_dir, f"{part}-{what}-ubyte.gz")
        for what in ("images-idx3", "labels-idx1")
    ]
    for path in paths:
        if not os.path.exists(path):
            sys.exit(f"{path} is missing: apt-get install "
                     "dataset-fashion-mnist, or set its directory with "
                     "--data-dir")
    images, labels = (read_idx(path)[:limit] for path in paths)
    images = (images.astype(np.float32) / 255 - 0.286) / 0.353
    return images[..., np.newaxis], labels.astype(np.int64)


def share(count, batch_size, seed, rank, size):
    """The batches of one epoch of one rank: lists of numbers of images.

    All ranks' n-th batches together are the n-th batch of one process with
    batches of batch_size * size.
    """
    order = np.random.RandomState(seed).permutation(count)
    whole = batch_size * size
    for first in range(0, count - whole + 1, whole):
        yield order[first + rank:first + whole:size]
