"""A classifier of digits, in the shape of Horovod's MNIST example for PyTorch.

The digits are drawn here: a pattern per class, with noise.
"""

import argparse
import hashlib

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
import torch.utils.data.distributed

import horovod.torch as hvd
import rank

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=10)
parser.add_argument("--test-batch-size", type=int, default=50)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--momentum", type=float, default=0.5)
parser.add_argument("--seed", type=int, default=42)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--fp16-allreduce", action="store_true")
parser.add_argument("--use-adasum", action="store_true")
parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)


class Digits(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(0)
        patterns = 2 * torch.rand(10, 1, 14, 14, generator=generator) - 1
        generator.manual_seed(seed)
        self.labels = torch.randint(10, (count,), generator=generator)
        self.images = patterns[self.labels] + 0.2 * torch.randn(count, 1, 14, 14, generator=generator)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.images[i], self.labels[i]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, kernel_size=3)
        self.conv2 = nn.Conv2d(6, 8, kernel_size=3)
        self.conv2_drop = nn.Dropout2d(0.1)
        self.fc1 = nn.Linear(32, 30)
        self.fc2 = nn.Linear(30, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2_drop(self.conv2(x)), 2))
        x = F.relu(self.fc1(x.view(-1, 32)))
        return F.log_softmax(self.fc2(x), dim=1)


def train(args, model, optimizer, loader, sampler, epoch):
    model.train()
    sampler.set_epoch(epoch)
    for data, target in loader:
        optimizer.zero_grad()
        F.nll_loss(model(data), target).backward()
        optimizer.step()


def metric_average(value, name):
    return hvd.allreduce(torch.tensor(value), name=name).item()


def test(model, loader, sampler):
    model.eval()
    loss, accuracy = 0.0, 0.0
    with torch.no_grad():
        for data, target in loader:
            output = model(data)
            loss += F.nll_loss(output, target, reduction="sum").item()
            accuracy += output.argmax(1).eq(target).float().sum().item()
    loss, accuracy = loss / len(sampler), accuracy / len(sampler)
    return metric_average(loss, "avg_loss"), metric_average(accuracy, "avg_accuracy")


def main():
    args = parser.parse_args()
    hvd.init()
    torch.manual_seed(args.seed + hvd.rank())  # models differ before the broadcast
    torch.set_num_threads(1)
    train_data, test_data = Digits(600, 1), Digits(150, 2)
    train_sampler = torch.utils.data.distributed.DistributedSampler(
        train_data, num_replicas=hvd.size(), rank=hvd.rank())
    kwargs = {"num_workers": args.workers}
    if args.workers > 0:
        kwargs.update(multiprocessing_context="forkserver", persistent_workers=True)
    train_loader = torch.utils.data.DataLoader(train_data, batch_size=args.batch_size, sampler=train_sampler,
                                               **kwargs)
    test_sampler = torch.utils.data.distributed.DistributedSampler(
        test_data, num_replicas=hvd.size(), rank=hvd.rank())
    test_loader = torch.utils.data.DataLoader(test_data, batch_size=args.test_batch_size, sampler=test_sampler)
    model = Net()
    lr_scaler = hvd.size() if not args.use_adasum else 1
    optimizer = optim.SGD(model.parameters(), lr=args.lr * lr_scaler, momentum=args.momentum)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(),
                                         compression=compression,
                                         op=hvd.Adasum if args.use_adasum else hvd.Average,
                                         gradient_predivide_factor=args.gradient_predivide_factor)
    before, _ = test(model, test_loader, test_sampler)
    for epoch in range(1, args.epochs + 1):
        train(args, model, optimizer, train_loader, train_sampler, epoch)
    loss, accuracy = test(model, test_loader, test_sampler)
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(bytes(value.contiguous().view(torch.uint8).flatten().tolist()))
    rank.record(before=before, loss=loss, accuracy=accuracy, digest=digest.hexdigest())


if __name__ == "__main__":
    main()
