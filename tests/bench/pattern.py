"""Inputs whose exact sum over the ranks is known; the twin of pattern.h.

Every input is a window into one table of small integers, so every sum is a
window too, into a table of sums; pattern.h explains why this finds errors.

Thread contract: after construction, any thread.
"""

from typing import NamedTuple, Optional

import torch

PERIOD = 65521
_RANK_STEP = 7919
_ROUND_STEP = 10007
_TENSOR_STEP = 613


class Wrong(NamedTuple):
    """The first wrong element."""
    index: int
    got: float
    expected: float


def _shift(rank: int, turn: int, tensor: int) -> int:
    return (rank * _RANK_STEP + turn * _ROUND_STEP +
            tensor * _TENSOR_STEP) % PERIOD


class Pattern:
    """Fills a rank's tensors (contiguous float32) and checks the sums."""

    def __init__(self, ranks: int):
        hashes = (torch.arange(PERIOD) * 2654435761) & 0xffffffff
        table = ((hashes >> 21) - 1024).to(torch.float32)
        # Both twice in a row: every window of PERIOD elements is contiguous.
        self._table = torch.cat([table, table])
        sums = torch.zeros(PERIOD)
        for rank in range(ranks):
            sums += self._table[_shift(rank, 0, 0):][:PERIOD]
        self._sums = torch.cat([sums, sums])

    def fill(self, rank: int, turn: int, number: int,
             out: torch.Tensor) -> None:
        """number: of the tensor within its case; turn: the round."""
        window = self._table[_shift(rank, turn, number):][:PERIOD]
        for part in out.view(-1).split(PERIOD):
            part.copy_(window[:part.numel()])

    def check(self, turn: int, number: int, result: torch.Tensor,
              factor: float = 1) -> Optional[Wrong]:
        """Compares with the sum over all ranks, times factor; None if right."""
        window = self._sums[_shift(0, turn, number):][:PERIOD]
        if factor != 1:
            window = window * factor
        for block, part in enumerate(result.view(-1).split(PERIOD)):
            expected = window[:part.numel()]
            if torch.equal(part, expected):
                continue
            at = int((part != expected).nonzero()[0])
            return Wrong(block * PERIOD + at, part[at].item(),
                         expected[at].item())
        return None
