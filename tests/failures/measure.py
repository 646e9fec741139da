"""Runs faults many times and writes the measurements: docs/failures.jsonl and .md.

  bazel run -c opt //tests/failures:measure -- [FAULT...] [--times=20]
  bazel run -c opt //tests/failures:measure -- --render     only the page

Without names all faults are measured. Lines of other faults stay in the raw
file. Fault.times limits how often a slow fault is run.
"""

import argparse
import json
import os
import platform
import sys

if "TEST_SRCDIR" not in os.environ:  # "bazel run" does not set it; see harness.py
    _tree = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(sys.argv[0]))))
    os.environ["TEST_SRCDIR"], os.environ["TEST_WORKSPACE"] = os.path.split(_tree)

# pylint: disable=wrong-import-position
import limits  # noqa: E402
import namespaces  # noqa: E402
import page  # noqa: E402
import registry  # noqa: E402
import topic  # noqa: E402
import ucx_faults  # noqa: E402

DOCS = os.path.join(os.environ.get("BUILD_WORKSPACE_DIRECTORY", os.environ.get("MAYPOLE_TEST_OUT", ".")), "docs")
RAW, PAGE = os.path.join(DOCS, "failures.jsonl"), os.path.join(DOCS, "failures.md")
# Functions that return None, or why the topic cannot be run here.
NEEDS = {"wire": namespaces.available, "memory": limits.available, "ucx": ucx_faults.available}


def machine():
    with open("/proc/cpuinfo") as f:
        model = next((line.split(":")[1].strip() for line in f if line.startswith("model name")), platform.machine())
    return "a machine with %d cores (%s, Linux %s), load average %.1f when it began" % (
        os.cpu_count(), model, platform.release().split("-")[0], os.getloadavg()[0])


def measure(scenes, fault, times):
    """Runs the fault; returns its runs as lines of the raw file."""
    runs = []
    for layout in fault.layouts:
        for i in range(min(times, fault.times)):
            outcome = topic.run_once(scenes, fault, layout)
            topic.report(fault, layout, outcome)
            run = {"fault": fault.name, "layout": layout, "pause": _rounded(outcome.pause),
                   "seconds": {who: _rounded(s) for who, s in outcome.seconds.items()}}
            if i == 0:
                run["texts"] = {who: page.normal(t) if t else t for who, t in outcome.texts.items()}
            runs.append(run)
    return runs


def _rounded(seconds):
    return None if seconds is None else round(seconds, 5)


def save(where, runs):
    """Writes both files, with the runs in the order of the registry."""
    order = {name: i for i, name in enumerate(registry.BY_NAME)}
    runs = sorted((r for r in runs if r["fault"] in order), key=lambda r: order[r["fault"]])
    for path, text in ((RAW, "".join(json.dumps(line) + "\n" for line in [where] + runs)),
                       (PAGE, page.render(where, runs))):
        with open(path + ".new", "w", encoding="utf-8") as f:
            f.write(text)
        os.rename(path + ".new", path)


def main():
    parser = argparse.ArgumentParser(description="Runs faults many times; writes docs/failures.{jsonl,md}.")
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="names, or topics: " + ", ".join(registry.TOPICS))
    parser.add_argument("--times", type=int, default=20, help="runs of each fault and layout (20)")
    parser.add_argument("--render", action="store_true", help="only write the page, from the raw file")
    args = parser.parse_args()
    where, runs = page.read(RAW) if os.path.exists(RAW) else ({}, [])
    if args.render:
        return save(where, runs)
    unknown = [n for n in args.faults if n not in registry.BY_NAME and n not in registry.TOPICS]
    if unknown:
        parser.error("no such fault or topic: " + ", ".join(unknown))
    where = {"machine": machine()}
    for name, faults in registry.TOPICS.items():
        wanted = [f for f in faults if not args.faults or f.name in args.faults or name in args.faults]
        reason = NEEDS[name]() if wanted and name in NEEDS else None
        if reason:
            print("%s is left out: %s" % (name, reason), flush=True)
            continue
        with topic.Scenes() as scenes:
            for fault in wanted:
                runs = [r for r in runs if r["fault"] != fault.name] + measure(scenes, fault, args.times)
                save(where, runs)


if __name__ == "__main__":
    main()
