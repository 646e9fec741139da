"""A small residual network on images drawn here, in the shape of Horovod's ImageNet example for PyTorch: warm-up of the
learning rate, checkpoints of rank 0 and a start from the last one, gradients of several batches, averaged metrics.

Normalization is by groups of channels, so that one process on all images, without Horovod, must come to the same
weights; it runs here, too, and `apart` is the difference.
"""

import argparse
import glob
import math
import os
import re

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
import torch.utils.data.distributed

import horovod.torch as hvd
import rank

parser = argparse.ArgumentParser()
parser.add_argument("--checkpoints", required=True, help="a directory")
parser.add_argument("--fp16-allreduce", action="store_true", default=False)
parser.add_argument("--batches-per-allreduce", type=int, default=1)
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--base-lr", type=float, default=0.02)
parser.add_argument("--warmup-epochs", type=float, default=2)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--wd", type=float, default=0.00005)
IMAGES, CLASSES = 96, 4


class Images(torch.utils.data.Dataset):
    def __init__(self, seed):
        generator = torch.Generator().manual_seed(9)
        patterns = torch.randn(CLASSES, 3, 8, 8, generator=generator, dtype=torch.float64)
        generator.manual_seed(seed)
        self.labels = torch.randint(CLASSES, (IMAGES,), generator=generator)
        self.images = patterns[self.labels] + torch.randn(IMAGES, 3, 8, 8, generator=generator, dtype=torch.float64)

    def __len__(self):
        return IMAGES

    def __getitem__(self, i):
        return self.images[i], self.labels[i]


class Block(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.GroupNorm(2, outside)
        self.conv2, self.norm2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.GroupNorm(2, outside)
        self.short = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x):
        inner = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(inner + self.short(x))


def resnet(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 6, 3, 1, 1, bias=False), Block(6, 6, 1), Block(6, 8, 2), nn.AdaptiveAvgPool2d(1),
                         nn.Flatten(), nn.Linear(8, CLASSES)).double()


def new_optimizer(args, model):
    return optim.SGD(model.parameters(), lr=args.base_lr, momentum=args.momentum, weight_decay=args.wd)


def adjust_learning_rate(args, optimizer, epoch, batch, batches, size):
    """A linear warm-up from base_lr to base_lr * size; a tenth of it from epoch 5 on."""
    epoch += batch / batches
    if epoch < args.warmup_epochs:
        factor = 1 / size * (epoch * (size - 1) / args.warmup_epochs + 1)
    else:
        factor = 1.0 if epoch < 5 else 0.1
    for group in optimizer.param_groups:
        group["lr"] = args.base_lr * size * args.batches_per_allreduce * factor


def train_epoch(args, model, optimizer, loader, epoch, size, log):
    model.train()
    for index, (data, target) in enumerate(loader):
        adjust_learning_rate(args, optimizer, epoch, index, len(loader), size)
        optimizer.zero_grad()
        # Each part is one backward pass; the optimizer reduces after the last one.
        for i in range(0, len(data), args.batch_size):
            part = slice(i, i + args.batch_size)
            loss = F.cross_entropy(model(data[part]), target[part])
            log(loss)
            loss.div_(math.ceil(len(data) / args.batch_size))
            loss.backward()
        optimizer.step()


class Metric:
    """The average over all ranks' values."""

    def __init__(self, name):
        self.name, self.sum, self.count = name, torch.tensor(0.0), 0

    def update(self, value):
        self.sum += hvd.allreduce(value.detach().float().cpu(), name=self.name)
        self.count += 1

    @property
    def average(self):
        return float(self.sum / self.count)


def validate(model, loader):
    model.eval()
    loss, accuracy = Metric("val_loss"), Metric("val_accuracy")
    with torch.no_grad():
        for data, target in loader:
            output = model(data)
            loss.update(F.cross_entropy(output, target))
            accuracy.update(output.argmax(1).eq(target).float().mean())
    return loss.average, accuracy.average


def last_checkpoint(args):
    """The number of epochs of the last one, on rank 0."""
    found = [int(re.search(r"(\d+)\.pt$", path).group(1)) for path in glob.glob(args.checkpoints + "/*.pt")]
    return max(found, default=0)


def of_one_process(args, size):
    """The model after all epochs, without Horovod: the ranks' batches together are one."""
    model = resnet(0)
    optimizer = new_optimizer(args, model)
    sampler = torch.utils.data.distributed.DistributedSampler(Images(1), num_replicas=1, rank=0)
    rows = args.batch_size * size * args.batches_per_allreduce
    loader = torch.utils.data.DataLoader(Images(1), batch_size=rows, sampler=sampler)
    whole = argparse.Namespace(**vars(args))
    whole.batch_size = rows
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        train_epoch(whole, model, optimizer, loader, epoch, size, lambda loss: None)
    return model


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def main():
    args = parser.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    resume_from_epoch = hvd.broadcast(torch.tensor(last_checkpoint(args) if hvd.rank() == 0 else 0), root_rank=0,
                                      name="resume_from_epoch").item()
    train_sampler = torch.utils.data.distributed.DistributedSampler(Images(1), num_replicas=hvd.size(), rank=hvd.rank())
    train_loader = torch.utils.data.DataLoader(Images(1), batch_size=args.batch_size * args.batches_per_allreduce,
                                               sampler=train_sampler)
    val_sampler = torch.utils.data.distributed.DistributedSampler(Images(2), num_replicas=hvd.size(), rank=hvd.rank())
    val_loader = torch.utils.data.DataLoader(Images(2), batch_size=args.batch_size, sampler=val_sampler)
    model = resnet(hvd.rank())
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(new_optimizer(args, model), named_parameters=model.named_parameters(),
                                         compression=compression, backward_passes_per_step=args.batches_per_allreduce,
                                         op=hvd.Average)
    if resume_from_epoch > 0 and hvd.rank() == 0:
        saved = torch.load("%s/%d.pt" % (args.checkpoints, resume_from_epoch))
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    losses = []
    for epoch in range(resume_from_epoch, args.epochs):
        train_sampler.set_epoch(epoch)
        train_loss = Metric("train_loss")
        train_epoch(args, model, optimizer, train_loader, epoch, hvd.size(), train_loss.update)
        losses.append(train_loss.average)
        if hvd.rank() == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()},
                       os.path.join(args.checkpoints, "%d.pt" % (epoch + 1)))
    loss, accuracy = validate(model, val_loader)
    alone, mine, data = of_one_process(args, hvd.size()), weights(model), Images(2)
    right = alone(data.images).argmax(1).eq(data.labels).float().mean()
    rank.record(resumed=resume_from_epoch, losses=losses, loss=loss, accuracy=accuracy, accuracy_alone=float(right),
                apart=float((mine - weights(alone)).abs().max()), sum=float(mine.sum()))


if __name__ == "__main__":
    main()
