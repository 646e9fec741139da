"""Trains on Fashion-MNIST; rank 0 writes loss, throughput and each rank's time in communication for TensorBoard.

    maypolerun -np 4 --nodes 2 python3 examples/pytorch_tensorboard.py --logdir runs
    tensorboard --logdir runs
"""

import argparse
import time

import torch
import torch.nn.functional as F
from pytorch_fashion_mnist import Net, load
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torch.utils.tensorboard import SummaryWriter  # pip install tensorboard

import maypole.torch as hvd


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data-dir", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--logdir", default="runs", help="where rank 0 writes")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64, help="images per step and rank")
    parser.add_argument("--limit", type=int, default=None, help="use only the first LIMIT images")
    parser.add_argument("--every", type=int, default=20, help="steps between two points")
    return parser.parse_args()


def train_step(model, optimizer, images, labels):
    """Returns the loss and the seconds for which this rank waited for gradients of others."""
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()  # starts to reduce each gradient as soon as it is there
    before = time.perf_counter()
    optimizer.synchronize()  # waits for what is not reduced yet
    waited = time.perf_counter() - before
    with optimizer.skip_synchronize():
        optimizer.step()
    return loss.item(), waited


def report(writer, step, mine, seconds, batch):
    """Of one step, on average: mine, this rank's loss and wait; seconds; images of all ranks. Every rank calls it."""
    ranks = hvd.allgather(torch.tensor([mine], dtype=torch.float64), name="report")  # [ranks, 2]
    if writer is None:
        return
    writer.add_scalar("loss", ranks[:, 0].mean().item(), step)
    writer.add_scalar("images per second", batch / seconds, step)
    # As a fraction of the time. The others wait for the rank whose line is the lowest.
    for rank, wait in enumerate(ranks[:, 1].tolist()):
        writer.add_scalar(f"communication/rank {rank}", wait / seconds, step)


def main():
    arguments = parse_arguments()
    hvd.init()
    torch.manual_seed(1)
    torch.set_num_threads(1)  # the ranks of a node share its cores
    dataset = load(arguments.data_dir, "train", arguments.limit)
    sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(dataset, arguments.batch_size, sampler=sampler, drop_last=True)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0125 * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    writer = SummaryWriter(arguments.logdir) if hvd.rank() == 0 else None
    step, since, points = 0, time.perf_counter(), []
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            points.append(train_step(model, optimizer, images, labels))
            step += 1
            if len(points) == arguments.every:
                seconds = (time.perf_counter() - since) / len(points)
                mine = torch.tensor(points, dtype=torch.float64).mean(0).tolist()
                report(writer, step, mine, seconds, arguments.batch_size * hvd.size())
                since, points = time.perf_counter(), []
    if writer is not None:
        writer.close()
    hvd.shutdown()


if __name__ == "__main__":
    main()
