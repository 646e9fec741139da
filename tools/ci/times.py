#!/usr/bin/env python3
"""Where the time of tests/run.sh --times went: two tables for docs/testing.md.

usage: tools/ci/times.py BUILD_PROFILE TEST_PROFILE RESULTS [PAGE]

The profiles are those of bazel build and bazel test (--profile), RESULTS is the file of tools/ci/test.py. Writes the
tables into PAGE, between two marks, or to standard output.
"""
import gzip
import json
import os
import sys

BEGIN, END = "<!-- times.py: begin -->\n", "<!-- times.py: end -->\n"
TESTS = 20


class Profile:
    """Bazel's profile: how long a command ran, and what it executed."""

    def __init__(self, text):
        profile = json.loads(text)
        events = [e for e in profile["traceEvents"] if e.get("ph") == "X"]
        self.date = profile.get("otherData", {}).get("date", "")
        self.seconds = max((e["ts"] + e["dur"] for e in events), default=0) / 1e6
        actions = {}
        for e in events:
            if e.get("cat") == "action processing":
                actions.setdefault(e["tid"], []).append(e)
        self.executed = []  # (mnemonic, description, seconds); what came from a cache is not here
        for e in events:
            # What runs in the sandbox is there as "subprocess.run", without its mnemonic.
            if e.get("cat") == "local action execution" or e["name"] == "subprocess.run":
                around = [a["name"] for a in actions.get(e["tid"], []) if a["ts"] <= e["ts"] <= a["ts"] + a["dur"]]
                self.executed.append((e["name"], (around or [""])[0], e["dur"] / 1e6))


def kind(mnemonic, description):
    if mnemonic == "CppCompile":
        return "compiling tests" if description.endswith("_test.cc") else "compiling the rest"
    return "linking" if mnemonic == "CppLink" else "other actions"


def build_table(build, test, targets, cores, load):
    sums = {}
    for mnemonic, description, seconds in build.executed:
        entry = sums.setdefault(kind(mnemonic, description), [0, 0.0])
        entry[0] += 1
        entry[1] += seconds
    lines = ["Made by `tests/run.sh --times`, on %s, on %d cores; load average at its end %.1f. A slot is one of the cores "
             "that Bazel gives out." % (build.date, cores, load), "",
             "| what | seconds | number | seconds of slots |", "|---|---|---|---|",
             "| building | %.0f | %d | %.0f of %.0f |" % (
                 build.seconds, len(build.executed), sum(s for _, _, s in build.executed), cores * build.seconds)]
    lines += ["| - %s | | %d | %.0f |" % (what, n, seconds) for what, (n, seconds) in sorted(sums.items())]
    lines.append("| testing | %.0f | %d | %.0f of %.0f |" % (
        test.seconds, len(targets), sum(t["seconds"] for t in targets), cores * test.seconds))
    return lines


def test_table(targets, key):
    lines = ["| test | seconds | of them on a processor | cases |", "|---|---|---|---|"]
    for t in sorted(targets, key=key, reverse=True)[:TESTS]:
        lines.append("| `%s` | %.1f | %s | %d |" % (
            t["label"], t["seconds"], "?" if t["cpu"] is None else "%.1f" % t["cpu"],
            sum(t["cases"][c] for c in ("passed", "failed", "skipped"))))
    return lines


def page_part(build, test, targets, cores, load):
    lines = build_table(build, test, targets, cores, load)
    lines += ["", "The %d slowest tests:" % TESTS, ""] + test_table(targets, lambda t: t["seconds"])
    waits = [t for t in targets if t["cpu"] is not None]
    if waits:
        lines += ["", "The %d tests that wait longest, for a condition, a processor or a disk (a test that uses several "
                  "processors hides its waits):" % TESTS, ""]
        lines += test_table(waits, lambda t: t["seconds"] - t["cpu"])
    return "\n".join(lines) + "\n"


def main(build, test, results, page=None):
    profiles = []
    for path in (build, test):
        with gzip.open(path, "rt", encoding="utf-8") as f:
            profiles.append(Profile(f.read()))
    with open(results, encoding="utf-8") as f:
        targets = [json.loads(line) for line in f]
    part = page_part(*profiles, targets, os.cpu_count(), os.getloadavg()[0])
    if page is None:
        print(part, end="")
        return
    with open(page, encoding="utf-8") as f:
        head, _, rest = f.read().partition(BEGIN)
    with open(page, "w", encoding="utf-8") as f:
        f.write(head + BEGIN + part + END + rest.partition(END)[2])


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    main(*sys.argv[1:])
