#!/usr/bin/python3
"""Compares Maypole with its peers on this machine.

  tests/bench/compare.py                 measures, saves the raw rounds, then
                                         writes the page and the picture
  tests/bench/compare.py --quick         a functional check: small sizes, few rounds
  tests/bench/compare.py render          page and picture again, from the rounds

All contestants are alive at the same time, and a conductor gives each a turn
in sequence. The page, docs/benchmarks.md, describes what is compared and how.
The nodes are network namespaces, so this needs root.
"""

import argparse
import os
import signal
import subprocess
import sys
from typing import Dict, List

BENCH = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(BENCH))
sys.path[:0] = [BENCH, os.path.join(os.path.dirname(BENCH), "testing")]

import namespaces  # noqa: E402
import run as machine  # noqa: E402
from contest import analysis, example, limits, measure, page, plan, plot  # noqa: E402

RAW = os.path.join(ROOT, "docs", "benchmarks.jsonl")
PAGE = os.path.join(ROOT, "docs", "benchmarks.md")
PICTURE = os.path.join(ROOT, "docs", "benchmarks.png")

# Built files that the comparison runs, by their bazel labels.
TARGETS = [
    "//client/launcher:maypolerun", "//coordinator:maypole-coordinator",
    "//worker:maypole-worker", "//client:libmaypole.so",
    "//tests/bench/contest:contest_maypole", "//tests/bench/contest:contest_gloo",
    "//tests/bench/contest:contest_openmpi", "//tests/bench/contest:limits",
]
# Copied, so that a build does not change what is being measured.
BUILD = """
. tools/ci/bazel.sh
bazel build -c opt "$@"
bin="$(bazel info -c opt bazel-bin 2>/dev/null)"
for label; do
  file="$(echo "${label#//}" | tr : /)"
  mkdir -p "out/compare/$(dirname "$file")"
  cp -f "$bin/$file" "out/compare/$file.new"
  mv -f "out/compare/$file.new" "out/compare/$file"
done
mkdir -p out/compare/client/python
rm -rf out/compare/client/python/maypole
cp -r client/python/maypole out/compare/client/python/
"""


def arguments(argv: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", default="measure",
                        choices=["measure", "render"])
    parser.add_argument("--quick", action="store_true",
                        help="small sizes and few rounds, under a minute")
    parser.add_argument("--settings", help="some of: " + ", ".join(
        s.key for s in plan.SETTINGS))
    parser.add_argument("--cases", help="some of: " + ", ".join(
        plan.SIZES + (plan.RESNET,)))
    parser.add_argument("--contestants", help="some of: " + ", ".join(
        plan.CONTESTANTS))
    parser.add_argument("--turns", type=int, help="rounds of every case")
    parser.add_argument("--noexample", action="store_true",
                        help="leave out the Fashion-MNIST example")
    parser.add_argument("--raw", default=RAW, help="the raw rounds (%(default)s)")
    parser.add_argument("--page", default=PAGE)
    parser.add_argument("--picture", default=PICTURE)
    parser.add_argument("--tree", help="built files, laid out as bazel does; "
                        "otherwise they are built into out/compare")
    return parser.parse_args(argv)


def build() -> str:
    subprocess.run(["sh", "-euc", BUILD, "compare", *TARGETS], cwd=ROOT,
                   stdout=sys.stderr, check=True)
    return os.path.join(ROOT, "out", "compare")


def _first_line(command: List[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True,
                              check=True).stdout.split("\n")[0].strip()
    except (OSError, subprocess.CalledProcessError) as e:
        return f"unknown ({e})"


def versions() -> Dict[str, str]:
    package = ["dpkg-query", "-W", "-f", "${Version}"]
    names = {"Open MPI": "openmpi-bin", "PyTorch": "python3-torch",
             "Gloo": "libgloo-dev", "iperf3": "iperf3"}
    found = {name: _first_line(package + [p]) for name, p in names.items()}
    found["Maypole"] = _first_line(["git", "-C", ROOT, "describe", "--always",
                                    "--dirty", "--abbrev=9"])
    return found


def settings(options: argparse.Namespace) -> List[plan.Setting]:
    keys = plan.chosen(options.settings, [s.key for s in plan.SETTINGS],
                       "setting")
    return [s for s in plan.SETTINGS if s.key in keys]


def measure_all(options: argparse.Namespace, tree: str) -> List[str]:
    """What failed."""
    wanted = settings(options)
    contestants = plan.chosen(options.contestants, list(plan.CONTESTANTS),
                              "contestant")
    failures = []
    reason = namespaces.available() if any(s.nodes > 1 for s in wanted) else None
    with limits.Machine(os.path.join(tree, "tests/bench/contest/limits")) as m, \
            measure.RawFile(options.raw) as raw:
        measure.say("raw rounds: " + options.raw)
        raw.add("run", machine=machine.machine(), versions=versions(),
                cores=len(os.sched_getaffinity(0)), quick=options.quick)
        measurement = measure.Measurement(raw, m, tree, contestants,
                                          options.quick, options.turns)
        for setting in wanted:
            if setting.nodes > 1 and reason is not None:
                raw.add("skipped", setting=setting.key, reason=reason)
                measure.say(f"{setting.title}: left out: {reason}")
                continue
            whats = plan.whats(setting, options.quick)
            if options.cases is not None:
                whats = plan.chosen(options.cases,
                                    list(plan.SIZES + (plan.RESNET,)), "case")
            measurement.setting(setting, whats)
        failures += measurement.failures
        if not options.noexample:
            measure.say("Fashion-MNIST example")
            try:
                raw.add("example", **example.measure(tree, options.quick))
            except ValueError as e:
                failures.append(str(e))
                measure.say("FAILED " + failures[-1])
    return failures


def render(options: argparse.Namespace) -> None:
    results = analysis.load(options.raw)
    for path in (options.page, options.picture):
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    plot.draw(results, options.picture)
    page.write(results, options.page, options.picture, options.raw)
    measure.say(f"written: {options.page}, {options.picture}")


def main(argv: List[str]) -> int:
    options = arguments(argv)
    # So that `finally` blocks run.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    failures = []
    try:
        if options.command == "measure":
            failures = measure_all(options, options.tree or build())
        render(options)
    except (ValueError, OSError, subprocess.CalledProcessError) as e:
        print(f"compare.py: {e}", file=sys.stderr)
        return 1
    if failures:
        print(f"compare.py: {len(failures)} failures, see above",
              file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
