"""ElasticSampler: the samples of an epoch that this rank still has to process.

    sampler = ElasticSampler(dataset)
    for i, batch in enumerate(DataLoader(dataset, 32, sampler=sampler)):
        ...
        sampler.record_batch(i, 32)
    sampler.set_epoch(epoch + 1)   # at the end of an epoch

Invariants: all ranks have the same order of the epoch's samples. The remaining
ones are dealt out to the ranks in turn, so that when each of n ranks has
processed b of its samples, the first n * b of the remaining ones are done. So a
single number, processed_num, says what all ranks have done, including those
that have died since. It counts from the start of the order.

Samples that ranks record in another way (record_indices) form a set in addition
to that number; sync() of the state merges the ranks' sets.

Thread contract: one thread.
"""

import math
import random
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any

import torch

from maypole.common import basics


class ElasticSampler(torch.utils.data.Sampler):
    """Deals out the samples that are not processed yet to the ranks of the job.

    All ranks get the same number of samples: up to size() - 1 samples that another rank also has fill up the end.

    Args:
        dataset: has a length and is indexed by numbers.
        shuffle: a different order in each epoch, which depends only on seed and epoch.
        seed: the seed of the order, the same on all ranks.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0):
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.processed_indices: set[int] = set()
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch: no sample of it is processed.

        Call it at the end of the previous one, not where an interrupted epoch
        is continued.
        """
        self.epoch = epoch
        self.processed_num = 0
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Records that this rank, and each other rank, has processed another batch.

        Call it once for each batch, in the order in which the sampler deals
        them out; sizes may differ from batch to batch, but not from rank to
        rank. All ranks must record the same batches before they commit.

        Args:
          batch_idx: not used, so the program may count from the beginning of
              the epoch or from the last change of ranks.
          batch_size: samples of the batch on this rank.
        """
        self._recorded += batch_size * self.num_replicas
        done = min(self._recorded, len(self.remaining_indices))
        if done > 0:
            self.processed_num = self._places[done - 1] + 1

    def record_indices(self, indices: Iterable[int]) -> None:
        """Records that this rank has processed these samples."""
        self.processed_indices.update(int(i) for i in indices)

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """The samples of this rank's batch."""
        return self.indices[batch_idx * batch_size:(batch_idx + 1) * batch_size]

    def state_dict(self) -> dict[str, Any]:
        """What load_state_dict() takes: the epoch and what has been processed in it."""
        return {
            "epoch": self.epoch,
            "processed_num": self.processed_num,
            "processed_indices": set(self.processed_indices),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the state of a sampler, also of one of Horovod's.

        Some states of Horovod's have only processed_num, others only processed_indices.
        """
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict.get("processed_num", 0)
        self.processed_indices = set(state_dict.get("processed_indices", ()))
        self.reset()

    def reset(self) -> None:
        """Deals out the remaining samples again, to the ranks of this membership epoch."""
        self.num_replicas = basics.size()
        self.rank = basics.rank()
        self._recorded = 0  # samples of all ranks, since this call
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        # The position of each remaining sample in the order.
        self._places: Sequence[int] = range(self.processed_num, len(order))
        if self.processed_indices:
            self._places = [
                p for p in self._places
                if order[p] not in self.processed_indices
            ]
        self.remaining_indices = [order[p] for p in self._places]
        left = len(self.remaining_indices)
        self.num_samples = math.ceil(left / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        self.indices = [
            self.remaining_indices[i % left]
            for i in range(self.rank, self.total_size, self.num_replicas)
        ]

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples
