"""Where a recipe is played: by the ranks of a job, or by one process that has the batches of all of them.

    Together(hvd, subset)         this rank's part
    Alone(members)                what the ranks `members` do together, in one process and without Maypole

The reference is the mathematics of a DistributedOptimizer, computed from whole batches:

* Average: the loss is the mean of the ranks' mean losses. Sum: their sum. A rank that has no batch, or computes no
  gradient, contributes zero, and the mean is still over all ranks.
* Once some rank has had a gradient of a parameter, its gradient counts as zeros in steps in which no rank has one.
  (Torch would leave it out of the step; the ranks cannot know this without a message.)
* A rank outside of the process set trains alone.
* float16 and bfloat16 on the way are a tolerance (check.py), and Adasum is in adasum.py. PowerSGD is an approximation that
  has no reference: only the ranks' bits are compared.

Thread contract: one thread.
"""

import contextlib
import pickle

import torch

import models
from recipe import STEPS


def batches(recipe, epoch, index, count):
    """Which batches of an epoch the index-th of `count` ranks has."""
    last = index == count - 1
    if recipe.uneven == "join" and last:
        return list(range(STEPS - 2))
    if recipe.uneven == "first" and last and epoch == 0 or recipe.uneven == "ever" and last:
        return []
    if recipe.uneven == "one_skips" and index == 0:
        return [step for step in range(STEPS) if step != 1]
    return list(range(STEPS))


def uses_branch(recipe, now, index, count):
    """Whether the index-th of `count` ranks uses the branch in the now-th step."""
    return {"some": now % count == index, "late": now >= 2 and index == count - 1,
            "seldom": now % 3 == 0 and index == 0, "nobody": False}.get(recipe.usage, True)


def is_idle(recipe, now, index, count):
    return recipe.usage == "idle" and count > 1 and now % count == index


class Alone:
    """See the head of this file. own: these ranks' part only; all members by default (Adasum needs single ones)."""

    distributed = False
    batch_norm = torch.nn.BatchNorm1d
    nudged = False  # whether weights begin with other last bits: what becomes of that is what rounding can do

    def __init__(self, members, own=None):
        self.members = members
        self.own = own or members
        self.rank = 0

    def seed(self, seed):
        return seed

    def wrap(self, optimizer, *_):
        return optimizer

    def scale(self, recipe):
        """By what the ranks' summed losses are multiplied."""
        return 1.0 if recipe.op != "Average" else 1.0 / len(self.own)

    def complete(self, parameters, known):
        """Gives parameters the gradients that ranks would give them. known: those that have had one, and whether it was
        sparse."""
        if len(self.own) == 1:
            return
        for p in parameters:
            if p.requires_grad and p.grad is None and p in known:
                p.grad = models.zero_gradient(p, known[p])
            elif p.requires_grad and p.grad is not None:
                known[p] = p.grad.is_sparse

    def synchronize(self, optimizer):
        pass

    def synchronized(self, optimizer):
        return contextlib.nullcontext()

    def broadcast(self, model, optimizer):
        pass

    def shared(self, value):
        return pickle.loads(pickle.dumps(value))

    def join(self):
        return 0

    def crosses(self):
        return False

    def is_last(self):
        """Whether this rank alone has a program's fault."""
        return False


class Together:
    """See the head of this file. subset: the optimizer is of a process set without the last rank."""

    distributed = True

    def __init__(self, hvd, subset):
        self.hvd = hvd
        self.batch_norm = hvd.SyncBatchNorm
        self.rank = hvd.rank()
        self.set = hvd.global_process_set
        self.members = list(range(hvd.size()))
        if subset:
            self.members.pop()
            self.set = hvd.add_process_set(self.members)
        if self.rank not in self.members:
            self.members = [self.rank]
        self.own = [self.rank]

    def refresh(self):
        """The job has other ranks than before."""
        self.rank = self.hvd.rank()
        self.members = list(range(self.hvd.size()))
        self.own = [self.rank]

    def close(self):
        if self.set is not self.hvd.global_process_set:
            self.hvd.remove_process_set(self.set)

    def seed(self, seed):
        return seed + 1000 * self.rank

    def wrap(self, optimizer, names, recipe):
        hvd = self.hvd
        passes = 1 if recipe.passes == "one" or not recipe.declared else 2
        compression = getattr(hvd.Compression, recipe.compression)
        return hvd.DistributedOptimizer(
            optimizer, names, compression=compression(1) if recipe.compression == "powersgd" else compression,
            backward_passes_per_step=passes, op=getattr(hvd, recipe.op),
            gradient_predivide_factor=recipe.predivide, sparse_as_dense=recipe.as_dense, process_set=self.set,
            gradient_as_bucket_view=recipe.buckets != "no",
            bucket_cap_mb=200 / 2**20 if recipe.buckets == "small" else 25.0)

    def scale(self, recipe):
        return 1.0

    def complete(self, parameters, known):
        pass

    def synchronize(self, optimizer):
        optimizer.synchronize()

    def synchronized(self, optimizer):
        """Around a step() after synchronize()."""
        return optimizer.skip_synchronize()

    def broadcast(self, model, optimizer, root=0):
        self.hvd.broadcast_parameters(model.state_dict(), root_rank=root)
        if optimizer is not None:
            self.hvd.broadcast_optimizer_state(optimizer, root_rank=root)

    def shared(self, value):
        return self.hvd.broadcast_object(value, root_rank=0)

    def join(self):
        return self.hvd.join()

    def crosses(self):
        """Whether this rank takes two models in the other order."""
        return self.rank % 2 == 1

    def is_last(self):
        return self.rank == self.hvd.size() - 1
