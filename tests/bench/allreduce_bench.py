"""One rank of a measurement of allreduce by maypole.torch.

The twin of allreduce_bench.cc: the same flags, cases and output. To be started
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
from runner import Runner, WrongResult


class MaypoleLibrary:
    """maypole.torch as the runner sees a library."""

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


def _measure(found: List[cases.Case], path: str) -> None:
    library = MaypoleLibrary()
    first_rank = library.rank == 0
    # Opened before the measurement, so that a bad path is known at once.
    file = open(path, "w") if path and first_rank else None
    title = ("maypole.torch", library.size, library.nodes)
    if first_rank:
        print(report.head_text(*title), end="", flush=True)
    runner = Runner(library)
    rows = []
    for case in found:
        rows.append(runner.run(case))
        if first_rank:
            print(report.row_text(rows[-1]), end="", flush=True)
    if file is not None:
        with file:
            file.write(report.json_text(*title, rows))


def main() -> int:
    arguments = _arguments()
    try:
        found = cases.make_cases(arguments.sizes, arguments.max_bytes,
                                 arguments.rounds, arguments.resnet)
        if arguments.list:
            print(cases.list_text(found), end="")
        else:
            _measure(found, arguments.json)
    except (ValueError, WrongResult, OSError, hvd.HorovodInternalError) as e:
        print(f"allreduce_bench: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
