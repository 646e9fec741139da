"""Images per second on random data, in the shape of Horovod's synthetic
benchmark for PyTorch; the model stands for one of torchvision."""

import argparse
import timeit

import torch
import torch.nn.functional as F
import torch.optim as optim

import horovod.torch as hvd
import rank

parser = argparse.ArgumentParser()
parser.add_argument("--fp16-allreduce", action="store_true", default=False)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--num-warmup-batches", type=int, default=2)
parser.add_argument("--num-batches-per-iter", type=int, default=3)
parser.add_argument("--num-iters", type=int, default=2)
parser.add_argument("--use-adasum", action="store_true", default=False)


def resnet():
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, stride=2), torch.nn.BatchNorm2d(16), torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, stride=2), torch.nn.BatchNorm2d(32), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 1000))


def main():
    args = parser.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    model = resnet()
    lr_scaler = hvd.size() if not args.use_adasum else 1
    optimizer = optim.SGD(model.parameters(), lr=0.01 * lr_scaler)
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(),
                                         compression=compression,
                                         op=hvd.Adasum if args.use_adasum else hvd.Average)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    data = torch.randn(args.batch_size, 3, 32, 32)
    target = torch.LongTensor(args.batch_size).random_() % 1000
    losses = []

    def benchmark_step():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    def log(text):
        if hvd.rank() == 0:
            print(text)

    log("Batch size: %d, number of CPUs: %d" % (args.batch_size, hvd.size()))
    timeit.timeit(benchmark_step, number=args.num_warmup_batches)
    speeds = []
    for _ in range(args.num_iters):
        seconds = timeit.timeit(benchmark_step, number=args.num_batches_per_iter)
        speeds.append(args.batch_size * args.num_batches_per_iter / seconds)
        log("Iter: %.1f img/sec per CPU" % speeds[-1])
    sums = hvd.allgather(torch.stack([p.detach().double().sum() for p in model.parameters()]).reshape(1, -1))
    rank.record(speeds=speeds, losses=losses, equal=bool(torch.equal(sums, sums[:1].expand_as(sums))))


if __name__ == "__main__":
    main()
