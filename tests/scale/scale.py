#!/usr/bin/python3
"""Loads a coordinator with jobs of many nodes, and writes docs/scale.md.

  tests/scale/scale.py                 measures, saves the raw runs, then writes
                                       the page and the picture
  tests/scale/scale.py render          page and picture again, from the runs

The page says what is measured and how. Programs are taken from bazel-bin; build
them first:

  bazel build -c opt //coordinator:maypole-coordinator //tests/scale:{scale_load,relay_hop}
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import Dict, Iterator, List, Tuple

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "bench")]

RAW = os.path.join(ROOT, "docs", "scale.jsonl")
PAGE = os.path.join(ROOT, "docs", "scale.md")
PICTURE = os.path.join(ROOT, "docs", "scale.png")
NODES = [16, 64, 256, 1024]
# Nodes of the job beside which the small one runs; 0: it runs alone.
BESIDE = [0, 64, 256, 1024]
RESUME_S = 1
RELAY_NODES = 64  # --relay_nodes of the coordinator


@contextlib.contextmanager
def coordinator(program: str, *flags: str) -> Iterator[Tuple[str, int]]:
    """Address and process id of a coordinator that lives as long as the block."""
    read, write = os.pipe()
    daemon = subprocess.Popen(
        [program, "--frozen_nodes=0", "--metrics=", "--log_level=off",
         f"--resume_timeout={RESUME_S}s", f"--announce_fd={write}", *flags], pass_fds=[write])
    try:
        os.close(write)
        with os.fdopen(read) as announced:
            yield announced.read().split()[0].partition("=")[2], daemon.pid
    finally:
        daemon.terminate()
        daemon.wait()


def command(load: str, at: Tuple[str, int], **flags) -> List[str]:
    return [load, f"--address={at[0]}", f"--coordinator={at[1]}",
            *(f"--{name}={value}" for name, value in flags.items())]


def run(program: str, load: str, relays: bool = True, **flags) -> Dict:
    """One job alone on a coordinator of its own."""
    with coordinator(program, *([] if relays else ["--relay_nodes=0"])) as at:
        done = subprocess.run(command(load, at, **flags), stdout=subprocess.PIPE,
                              text=True, check=True, timeout=300)
    return json.loads(done.stdout.splitlines()[-1])


def beside(program: str, load: str, nodes: int, rounds: int) -> Dict:
    """A job of two nodes and one tensor, while one of `nodes` does steps."""
    with coordinator(program) as at:
        big = None
        if nodes:
            big = subprocess.Popen(
                ["nice", "-n", "10"] + command(load, at, job="big", nodes=nodes, seconds=300),
                stdout=subprocess.PIPE, text=True)
        try:
            if big:
                if big.stdout.readline() != "started\n":
                    raise ValueError(f"the job of {nodes} nodes has not started")
            done = subprocess.run(
                command(load, at, job="small", nodes=2, ranks=1, tensors=1, channels=2,
                        warmup=20, together=rounds),
                stdout=subprocess.PIPE, text=True, check=True, timeout=300)
            if big and big.poll() is not None:
                raise ValueError("the big job has ended before the small one")
        finally:
            if big:
                big.kill()
                big.wait()
                big.stdout.close()
    return json.loads(done.stdout.splitlines()[-1])


def hop(program: str, nodes: int) -> Dict:
    """How long one executor takes to pass a message on."""
    done = subprocess.run([program, f"--nodes={nodes}"], stdout=subprocess.PIPE, text=True,
                          check=True, timeout=60)
    return json.loads(done.stdout)


class RawFile:

    def __init__(self, path: str):
        self._file = open(path, "w", encoding="utf-8")

    def add(self, kind: str, **facts) -> None:
        # The load of the machine, just after the run: others work on it, too.
        facts["load_average"] = os.getloadavg()[0]
        self._file.write(json.dumps({"kind": kind, **facts}) + "\n")
        self._file.flush()
        print(time.strftime("%H:%M:%S"), kind, {
            k: v for k, v in facts.items() if not isinstance(v, dict)}, file=sys.stderr)


def version() -> str:
    return subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=9"],
                          capture_output=True, text=True, check=True).stdout.strip()


def measure(options: argparse.Namespace) -> None:
    import run as machine  # tests/bench/run.py
    raw = RawFile(options.raw)
    raw.add("machine", text=machine.machine(), version=version(), rounds=options.rounds)
    for number in range(options.rounds):
        for nodes in options.nodes:
            # Fewer steps where they take longer.
            steps = max(10, min(100, 10240 // nodes))
            for channels in (4, nodes):
                raw.add("job", program="now", round=number, nodes=nodes, shared=channels == 4,
                        result=run(options.coordinator, options.load, nodes=nodes,
                                   channels=channels, together=steps, late=steps, paced=5,
                                   end="rank"))
            for end in ("stream", "leave"):
                raw.add(end, nodes=nodes, round=number, result=run(
                    options.coordinator, options.load, nodes=nodes, warmup=1, together=1, end=end))
            if nodes > RELAY_NODES:
                raw.add("job", program="each", round=number, nodes=nodes, shared=True,
                        result=run(options.coordinator, options.load, relays=False, nodes=nodes,
                                   together=steps // 2, late=steps // 2, end="rank"))
                raw.add("hop", round=number, nodes=nodes, result=hop(options.hop, nodes))
        for nodes in options.beside:
            raw.add("beside", round=number, nodes=nodes,
                    result=beside(options.coordinator, options.load, nodes, 2000))


def render(options: argparse.Namespace) -> None:
    import scale_page
    import scale_plot
    results = scale_page.Results(options.raw)
    scale_plot.draw(results, options.picture)
    scale_page.write(results, options.page, options.picture, options.raw)


def arguments(argv: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", default="measure", choices=["measure", "render"])
    parser.add_argument("--coordinator", default=os.path.join(
        ROOT, "bazel-bin", "coordinator", "maypole-coordinator"))
    parser.add_argument("--load", default=os.path.join(
        ROOT, "bazel-bin", "tests", "scale", "scale_load"))
    parser.add_argument("--hop", default=os.path.join(
        ROOT, "bazel-bin", "tests", "scale", "relay_hop"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nodes", type=int, nargs="+", default=NODES)
    parser.add_argument("--beside", type=int, nargs="*", default=BESIDE)
    parser.add_argument("--raw", default=RAW)
    parser.add_argument("--page", default=PAGE)
    parser.add_argument("--picture", default=PICTURE)
    return parser.parse_args(argv)


def main(argv: List[str]) -> int:
    options = arguments(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` runs
    try:
        if options.command == "measure":
            measure(options)
        render(options)
    except (ValueError, OSError, subprocess.SubprocessError) as e:
        print(f"scale.py: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
