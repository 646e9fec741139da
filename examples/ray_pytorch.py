"""Trains a small model on a Ray cluster with maypole.ray.RayExecutor.

    python examples/ray_pytorch.py --workers 4               # ranks packed on few nodes
    python examples/ray_pytorch.py --hosts 2 --workers 2     # two on each of two nodes
    python examples/ray_pytorch.py --elastic --workers 2     # at least two; ranks come and go with the nodes

Connects to the cluster of RAY_ADDRESS; without it, Ray starts one on this machine.
"""

import argparse

import ray
import torch

import maypole.torch as hvd
from maypole.ray import RayExecutor


def train(epochs, lr):
    """Runs in each rank; returns its rank, the number of ranks and the last loss."""
    hvd.init()
    torch.manual_seed(1)
    x = torch.randn(4096, 16)
    dataset = torch.utils.data.TensorDataset(x, x @ torch.linspace(-1, 1, 16) + 0.5)
    model = torch.nn.Linear(16, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr), model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(dataset)

    @hvd.elastic.run
    def run(state):
        while state.epoch < epochs:
            for number, (inputs, targets) in enumerate(torch.utils.data.DataLoader(dataset, 64, sampler=sampler)):
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(model(inputs)[:, 0], targets)
                loss.backward()
                optimizer.step()
                sampler.record_batch(number, 64)
            state.loss = float(hvd.allreduce(loss.detach(), name="loss"))
            if hvd.rank() == 0:
                print(f"epoch {state.epoch}: {hvd.size()} ranks, loss {state.loss:.6f}", flush=True)
            state.epoch += 1
            sampler.set_epoch(state.epoch)
            state.commit()
        return hvd.rank(), hvd.size(), state.loss

    return run(hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, loss=0.0))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--hosts", type=int)
    parser.add_argument("--elastic", action="store_true")
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    ray.init()
    ranks = ({"min_workers": args.workers} if args.elastic else {"num_workers": args.workers} if args.hosts is None else
             {"num_hosts": args.hosts, "num_workers_per_host": args.workers})
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=60), **ranks)
    executor.start()
    print(executor.run(train, args=[args.epochs], kwargs={"lr": 0.05}))
    executor.shutdown()


if __name__ == "__main__":
    main()
