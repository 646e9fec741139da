"""One rank of a measurement of allreduce by maypole.torch.

The Python twin of allreduce_bench.cc: the same flags, cases and output. Start it
once per rank, as tests/bench/run.py --python does:

  maypolerun -np 4 --nodes 2 --no-prefix /usr/bin/python3 \\
      tests/bench/allreduce_bench.py --max_bytes=1MiB
"""

import argparse
import sys
from typing import List, Sequence

import torch

import cases
import maypole.torch as hvd
import report
from runner import Library, Runner, WrongResult


class MaypoleLibrary:
    """maypole.torch, as a Library for the runner."""

    def __init__(self):
        hvd.init()
        self.rank = hvd.rank()
        self.size = hvd.size()
        self.nodes = hvd.cross_size()

    def barrier(self) -> None:
        hvd.barrier()

    def allreduce(self, names: Sequence[str],
                  tensors: Sequence[torch.Tensor]) -> None:
        handles = [
            hvd.allreduce_async_(tensor, name=name, op=hvd.Sum)
            for name, tensor in zip(reversed(names), reversed(tensors))
        ]
        for handle in handles:
            hvd.synchronize(handle)

    def gather(self, mine: List[float]) -> List[float]:
        times = torch.tensor(mine, dtype=torch.float64)
        return hvd.allgather(times, name="bench.times").tolist()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Times allreduce by maypole.torch; one rank. Every element "
        "of every result is checked: a wrong one is reported and ends the "
        "program with status 1.")
    parser.add_argument("--sizes", default=cases.DEFAULT_SIZES,
                        help="sizes of single tensors, in bytes or with KiB, "
                        "MiB, GiB; empty for none (%(default)s)")
    parser.add_argument("--max_bytes", help="leaves out all that is larger")
    parser.add_argument("--rounds", type=int, default=0,
                        help="measured rounds of every case; 0: by its size")
    parser.add_argument("--resnet", action="store_true", default=True,
                        help="measures ResNet-50's 161 gradients too (default)")
    parser.add_argument("--noresnet", action="store_false", dest="resnet")
    parser.add_argument("--json", help="rank 0 writes the result there, every "
                        "round's time included")
    parser.add_argument("--list", action="store_true",
                        help="prints what would be measured, and ends")
    return parser.parse_args()


class _Display:
    """The output of rank 0: the table and the file."""

    def __init__(self, library: Library, path: str):
        self._title = ("maypole.torch", library.size, library.nodes)
        self._path = path
        self._rows: List[report.Row] = []
        self._show(report.head_text(*self._title))

    def add(self, row: report.Row) -> None:
        self._rows.append(row)
        self._show(report.row_text(row))

    def _show(self, text: str) -> None:
        print(text, end="", flush=True)
        # After every case, so that a failure leaves what was measured before.
        if self._path:
            with open(self._path, "w", encoding="utf-8") as file:
                file.write(report.json_text(*self._title, self._rows))


def _measure(library: Library, found: List[cases.Case], path: str) -> None:
    display = _Display(library, path) if library.rank == 0 else None
    runner = Runner(library)
    for case in found:
        row = runner.run(case)
        if display is not None:
            display.add(row)


def main() -> int:
    arguments = _arguments()
    who = ""
    try:
        found = cases.make_cases(arguments.sizes, arguments.max_bytes,
                                 arguments.rounds, arguments.resnet)
        if arguments.list:
            print(cases.list_text(found), end="")
            return 0
        library = MaypoleLibrary()
        who = f"rank {library.rank} of {library.size}: "
        _measure(library, found, arguments.json)
    except (ValueError, WrongResult, OSError, hvd.HorovodInternalError) as e:
        print(f"allreduce_bench: {who}{e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
