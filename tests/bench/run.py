#!/usr/bin/python3
"""Measures allreduce on this machine: starts one rank program per rank.

  tests/bench/run.py --np 4 --nodes 2              by the C++ API
  tests/bench/run.py --np 4 --nodes 2 --python     by maypole.torch

Prints a description of the machine, then the table. Builds what is missing:
the programs into out/bin, the bench into out/bench.
"""

import argparse
import os
import shlex
import subprocess
import sys
import time
from typing import List, Tuple

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PYTHON = "/usr/bin/python3"
BINARY = os.path.join(ROOT, "out", "bench", "allreduce_bench")
LAUNCHER = os.path.join(ROOT, "out", "bin", "maypolerun")

# The arguments are the environment file and the command.
WITH_ENVIRONMENT = '. "$1" && shift && exec "$@"'

BUILD = """
. tools/ci/bazel.sh
bazel build -c opt //tests/bench:allreduce_bench
mkdir -p out/bench
cp "$(bazel info -c opt bazel-bin 2>/dev/null)/tests/bench/allreduce_bench" \\
  out/bench/allreduce_bench.new
mv -f out/bench/allreduce_bench.new out/bench/allreduce_bench
"""


def parse(arguments: List[str]) -> Tuple[argparse.Namespace, List[str]]:
    """Returns the options of this program, and those of the measurement."""
    parser = argparse.ArgumentParser(
        description="Measures allreduce on this machine.",
        allow_abbrev=False,
        epilog="All other options go to the measurement: --sizes=4,64KiB,1MiB, "
        "--rounds=N, --noresnet, --json=FILE, --list.")
    parser.add_argument("--np", type=int, default=2, help="ranks (2)")
    parser.add_argument("--nodes", type=int, default=1,
                        help="nodes on this machine (1)")
    parser.add_argument("--python", action="store_true",
                        help="measure maypole.torch instead of the C++ API")
    parser.add_argument("--build", action="store_true",
                        help="build anew what is measured")
    parser.add_argument("--max-bytes", help="leave out all that is larger, "
                        "for example 1MiB")
    parser.add_argument("--timeout", type=float, default=900, metavar="S",
                        help="give up after so many seconds (900)")
    own, others = parser.parse_known_args(arguments)
    if own.max_bytes is not None:
        others.append("--max_bytes=" + own.max_bytes)
    return own, others


def build(anew: bool, python: bool) -> None:
    # Its output is no part of the result.
    def run(command: List[str]) -> None:
        subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=True)

    if anew or not os.access(LAUNCHER, os.X_OK):
        run([os.path.join(ROOT, "deploy", "build.sh")])
    if not python and (anew or not os.access(BINARY, os.X_OK)):
        run(["sh", "-euc", BUILD])


def first_field(path: str, name: str) -> str:
    """The value of the first line `name : value` of a file of /proc."""
    with open(path, encoding="utf-8") as f:
        for line in f:
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return "unknown"


def congestion_control() -> str:
    """What new connections get, unless their program chooses."""
    try:
        with open("/proc/sys/net/ipv4/tcp_congestion_control", encoding="ascii") as f:
            return f.read().strip()
    except OSError:
        return "unknown"


def machine() -> str:
    memory = first_field("/proc/meminfo", "MemTotal").split()[0]
    gib = f"{int(memory) / 2**20:.1f} GiB" if memory.isdigit() else memory
    return (f"machine: {len(os.sched_getaffinity(0))} cores, "
            f"{first_field('/proc/cpuinfo', 'model name')}, {gib}, "
            f"Linux {os.uname().release}, TCP {congestion_control()}, "
            f"{time.strftime('%Y-%m-%d %H:%M:%S %z')}")


def job(own: argparse.Namespace, others: List[str]) -> List[str]:
    program = [BINARY]
    if own.python:
        program = [PYTHON, os.path.join(HERE, "allreduce_bench.py")]
    return [
        "maypolerun", "-np", str(own.np), "--nodes", str(own.nodes),
        "--no-prefix", "--", *program, *others
    ]


def main() -> int:
    own, others = parse(sys.argv[1:])
    try:
        build(own.build, own.python)
    except (OSError, subprocess.CalledProcessError) as e:
        print(f"run.py: the build failed: {e}", file=sys.stderr)
        return 1
    command = job(own, others)
    print(machine())
    print(shlex.join(command), flush=True)
    process = subprocess.Popen([
        "bash", "-c", WITH_ENVIRONMENT, "run.py",
        os.path.join(ROOT, "deploy", "env.sh"), *command
    ])
    try:
        return process.wait(own.timeout)
    except KeyboardInterrupt:
        # The terminal has sent it to maypolerun too, which ends the ranks.
        return process.wait()
    except subprocess.TimeoutExpired:
        print(f"run.py: no end after {own.timeout:g} s, stopping the job",
              file=sys.stderr)
        process.terminate()
        process.wait()
        return 1


if __name__ == "__main__":
    sys.exit(main())
