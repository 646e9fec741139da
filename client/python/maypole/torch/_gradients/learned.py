"""What the ranks learn from the steps of one DistributedOptimizer, and when they forget it.

With buckets, the gradient of a new parameter is reduced alone in its first
step. After that all ranks know which gradients are sparse, and the others go
into buckets. The ranks must have learned the same. But ranks may see different
errors, and a rank that has joined (it had no input) has missed steps. So they
forget everything after an error and in a new membership epoch; after a join()
they first compare what they know.

Thread contract: one thread at a time.
"""

import zlib
from collections.abc import Iterable
from typing import Optional

import torch

from maypole import _native
from maypole.common import basics
from maypole.common.constants import Max
from maypole.torch._gradients.buckets import Buckets
from maypole.torch._gradients.equal_start import EqualStart
from maypole.torch._gradients.reducer import Reducer
from maypole.torch._gradients.same_step import SameStep
from maypole.torch.async_ops import allreduce_async_, synchronize


class Learned:
    """See the head of this file.

    names: each parameter's name, without a prefix. bucket_bytes: None for no
    buckets. The other arguments are made to forget at the same time.
    """

    def __init__(self, names: dict[torch.Tensor, str], bucket_bytes: Optional[int], reducer: Reducer,
                 start_check: EqualStart, same_step: SameStep):
        self.buckets = None if bucket_bytes is None else Buckets(bucket_bytes)
        self.outdated = False  # the buckets have parameters that the optimizer no longer has
        self.steps = 0  # since forget()
        self._optimizers_names = names
        self._reducer = reducer
        self._start_check = start_check
        self._same_step = same_step
        # Parameters that are in a bucket, or never will be.
        self._seen: set[torch.Tensor] = set()
        self._epoch = basics.joins()
        self._joins = _native.library().counts["join"]

    def fill_buckets(self, hooked: Iterable[torch.Tensor], names: dict[torch.Tensor, str]) -> None:
        """Moves gradients that were reduced alone into buckets. names: with a prefix."""
        if self.buckets is None:
            return
        fresh = [
            p for p in hooked
            if p not in self._seen and p.requires_grad
            and p.grad is not None
        ]
        self._seen.update(fresh)
        places = [p for p in fresh if self._reducer.fits_bucket(p)]
        # Not in the optimizer's order, which may differ between ranks.
        places.sort(key=lambda p: (self._reducer.layouts.place_of(p), names[p]))
        self.buckets.add(places, names, self._reducer.order_of)

    def forget(self) -> None:
        """Starts again as in the first step."""
        self.steps = 0
        self.outdated = False
        self._start_check.forget()
        self._same_step.forget()
        self._reducer.forget()
        if self.buckets is not None:
            self.buckets.drop()
            self._seen.clear()

    def epoch_is_over(self) -> bool:
        """Whether this process has joined another membership epoch since the last follow_job()."""
        return self._epoch != basics.joins()

    def follow_job(self, operation: str) -> None:
        """Forgets what other ranks may not know. operation: the name of the comparison after a join()."""
        if self.outdated:
            self.forget()
        joins = _native.library().counts["join"]
        if self.epoch_is_over():
            # Buckets of an earlier epoch are not in this epoch's shared memory, and the ranks have changed.
            self._epoch, self._joins = basics.joins(), joins
            self.forget()
        elif self._joins != joins:
            self._joins = joins
            self._same_step.forget()
            if not self._all_know_the_same(operation):
                self.forget()

    def _all_know_the_same(self, operation: str) -> bool:
        """Compares what the ranks know, in one small allreduce."""
        known = [self._reducer.layouts.knowledge(self._optimizers_names)]
        known += [bucket.layout(self._optimizers_names)
                  for bucket in self.buckets or ()]
        if self._reducer.has_state:
            known.append(self.steps)
        digest = zlib.crc32(repr(known).encode())
        both = torch.tensor([digest, -digest], device="cpu")
        highest, lowest = synchronize(
            allreduce_async_(both, None, operation, Max,
                             process_set=self._reducer.process_set)).tolist()
        return highest == -lowest
