#!/usr/bin/env python3
"""The shards of tests/run.sh --all, see docs/testing.md.

usage: tests/shards.py plan [N]            prints the tests of each of N shards, and how long it is expected to take
       tests/shards.py run I/N             runs the tests of shard I of N that have not passed yet at this commit
       tests/shards.py add [SUMMARY...]    adds summaries of shards (default: those of this machine) to
                                           docs/shards.jsonl, and what their tests took to tests/durations.txt
       tests/shards.py page                makes the table of docs/testing.md from docs/shards.jsonl

A shard's state is in a directory outside of the tree, $MAYPOLE_SHARDS (~/.cache/maypole/shards by default):
COMMIT/I-of-N.jsonl has a line for each test that ended, written at once; COMMIT/I-of-N.json is the summary.
"""
import collections
import dataclasses
import datetime
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

from tools.ci import test as ci  # noqa: E402

SHARDS = 6  # of the table in docs/testing.md
CORES = 2  # for which shards are made
OPTIONS = {
    "opt": ["-c", "opt"],
    "asan-ubsan": ["--config=asan-ubsan"],
    "tsan": ["--config=tsan"],
}
# Of what tests/durations.txt does not have. To compile all tests of a configuration takes 18 minutes with -c opt.
BUILD_SECONDS = {"opt": 1080, "asan-ubsan": 1800, "tsan": 1500}
TEST_SECONDS = {"small": 2, "medium": 30, "large": 90, "enormous": 600}
SLOW_SECONDS = 300
SANITIZER_FACTOR = 3  # to a test's seconds

DURATIONS = os.path.join(ROOT, "tests", "durations.txt")
PAGE = os.path.join(ROOT, "docs", "testing.md")
SUMMARIES = os.path.join(ROOT, "docs", "shards.jsonl")
BEGIN, END = "<!-- shards.py: begin -->\n", "<!-- shards.py: end -->\n"

Target = collections.namedtuple("Target", "label size tags")
Test = collections.namedtuple("Test", "config label seconds")


# --- Which shard has which test ---------------------------------------------


def read_durations(path=DURATIONS):
    """{(configuration, label or 'build'): seconds}."""
    found = {}
    with open(path, encoding="utf-8") as f:
        for line in f:
            words = line.split("#")[0].split()
            if words:
                found[words[0], words[1]] = float(words[2])
    return found


def tests_of(targets, durations):
    """All Tests of tests/run.sh --all: each target with -c opt, and under each sanitizer unless it is 'nosan'."""
    tests = []
    for target in targets:
        if "manual" in target.tags:
            continue
        usual = SLOW_SECONDS if "slow" in target.tags else TEST_SECONDS[target.size]
        usual = durations.get(("opt", target.label), usual)
        for config in OPTIONS:
            if config == "opt":
                tests.append(Test(config, target.label, usual))
            elif "nosan" not in target.tags:
                seconds = durations.get((config, target.label), SANITIZER_FACTOR * usual)
                tests.append(Test(config, target.label, seconds))
    return tests


def expected_seconds(tests, durations):
    """How long a shard with these Tests takes where nothing is built yet."""
    build = sum(durations.get((c, "build"), BUILD_SECONDS[c]) for c in {t.config for t in tests})
    return build + sum(t.seconds for t in tests) / CORES


def assign(tests, shards, durations):
    """A list of Tests for each shard; each Test is in exactly one.

    A configuration is compiled by each shard that has tests of it. So each shard has tests of as few
    configurations as possible; within a configuration, the longest test first goes to the shard with the
    least. Tests of equal length, such as the unknown, are dealt out by name.
    """
    groups = {}
    for test in tests:
        groups.setdefault(test.config, []).append(test)

    def seconds(group, parts=1):
        tests_seconds = sum(t.seconds for t in group) / CORES
        return expected_seconds(group, durations) - tests_seconds + tests_seconds / parts

    groups = [groups[c] for c in sorted(groups)]
    while len(groups) > shards:
        groups.sort(key=seconds, reverse=True)
        last = groups.pop()
        groups[-1] = groups[-1] + last
    parts = [1] * len(groups)
    while groups and sum(parts) < shards:
        parts[max(range(len(groups)), key=lambda i: seconds(groups[i], parts[i]))] += 1

    assigned = []
    for group, count in zip(groups, parts):
        bins = [[] for _ in range(count)]
        loads = [0] * count
        for test in sorted(group, key=lambda t: (-t.seconds, t.config, t.label)):
            least = loads.index(min(loads))
            bins[least].append(test)
            loads[least] += test.seconds
        assigned += bins
    return assigned + [[] for _ in range(shards - len(assigned))]


def parse_targets(xml):
    """The Targets of the output of bazel query --output=xml."""
    targets = []
    for rule in ET.fromstring(xml).iter("rule"):
        size = rule.find("string[@name='size']")
        tags = rule.find("list[@name='tags']")
        targets.append(Target(rule.get("name"), "medium" if size is None else size.get("value"),
                              frozenset(t.get("value") for t in tags) if tags is not None else frozenset()))
    return targets


def query_targets():
    return parse_targets(subprocess.run(["bazel", "query", "--output=xml", "tests(//...)"], cwd=ROOT, check=True,
                                        stdout=subprocess.PIPE, text=True).stdout)


# --- Running one ------------------------------------------------------------


def commit():
    """The commit of the tree, with '-changed' if the tree has changes; 'unknown' without git."""
    def git(*words):
        return subprocess.run(["git", "-C", ROOT] + list(words), check=True, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True).stdout.strip()
    try:
        return git("rev-parse", "HEAD") + ("-changed" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def state_directory():
    return os.environ.get("MAYPOLE_SHARDS") or os.path.expanduser("~/.cache/maypole/shards")


class State:
    """What is known of a shard at a commit: a file with a line for each event, to which events are appended."""

    def __init__(self, path, resume):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self.events = []
        if resume and os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                text = f.read()
            # A line that was cut off is none.
            self.events = [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]
        self._file = open(path, "w", encoding="utf-8")
        for event in self.events:
            self._file.write(json.dumps(event) + "\n")
        self._file.flush()
        self._begin = time.monotonic()

    def add(self, **event):
        event["at"] = round(time.monotonic() - self._begin, 1)
        self.events.append(event)
        self._file.write(json.dumps(event) + "\n")
        self._file.flush()


def summarize(shard, shards, tests, commit_id, events):
    """The summary of a shard. Of several results of a test the last one counts; one that failed and
    passed later at the same commit is named under 'flaky'."""
    tries, last, failed_once, builds = [], {}, set(), {}
    for event in events:
        if "begin" in event:
            tries.append([event, 0])
        tries[-1][1] = event["at"]
        if "build" in event:
            builds[event["config"]] = builds.get(event["config"], 0) + event["build"]
        if "target" in event:
            key = event["config"], event["target"]["label"]
            last[key] = event["target"]
            if not event["passed"]:
                failed_once.add(key)
    wanted = {(t.config, t.label) for t in tests}
    last = {key: target for key, target in last.items() if key in wanted}
    failures, reasons = {}, collections.Counter()
    for (config, label), target in sorted(last.items()):
        if target["cases"]["failed"]:
            failures["%s %s" % (config, label)] = target["cases"]["failures"] or [target["status"]]
        reasons.update(target["cases"]["reasons"])
    return {
        "shard": shard, "of": shards, "commit": commit_id, "date": tries[0][0]["begin"] if tries else None,
        "load": tries[0][0]["load"] if tries else None, "tries": len(tries),
        "seconds": round(sum(seconds for _, seconds in tries)), "build": {c: round(s) for c, s in builds.items()},
        "targets": len(wanted), "not run": len(wanted - set(last)),
        **{what: sum(t["cases"][what] for t in last.values()) for what in ("passed", "failed", "skipped")},
        "failures": failures,
        "flaky": sorted("%s %s" % key for key in failed_once & set(last) if not last[key]["cases"]["failed"]),
        "reasons": dict(sorted(reasons.items())),
        "durations": {"%s %s" % key: round(t["seconds"], 1) for key, t in sorted(last.items()) if t["seconds"]},
    }


def run(shard, shards):
    durations = read_durations()
    tests = assign(tests_of(query_targets(), durations), shards, durations)[shard - 1]
    commit_id = commit()
    path = os.path.join(state_directory(), commit_id, "%d-of-%d.jsonl" % (shard, shards))
    # Of a tree with changes, nobody knows whether it has changed since.
    state = State(path, resume=len(commit_id) == 40)
    done = {(e["config"], e["target"]["label"]) for e in state.events if "target" in e and e["passed"]}
    print("shard %d of %d at %s: %d tests, of which %d have passed" % (
        shard, shards, commit_id, len(tests), len(done)), flush=True)
    state.add(begin=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M"),
              load=round(os.getloadavg()[0], 1))
    for config, options in OPTIONS.items():
        labels = sorted(t.label for t in tests if t.config == config and (config, t.label) not in done)
        if not labels:
            continue
        # What tests need is built before, so that compilers have all cores and then tests have them.
        print("=== %s: build %d tests" % (config, len(labels)), flush=True)
        began = time.monotonic()
        subprocess.run(["bazel", "build", "--keep_going"] + options + labels, cwd=ROOT)
        state.add(config=config, build=time.monotonic() - began)
        print("=== " + config, flush=True)
        _, targets = ci.run(["--keep_going", "--local_test_jobs=%d" % os.cpu_count()] + options + labels,
                            lambda target, config=config: state.add(
                                config=config, target=dataclasses.asdict(target), passed=target.passed()))
        for line in ci.reasons_text(targets):
            print(line)
    summary = summarize(shard, shards, tests, commit_id, state.events)
    with open(path[:-1], "w", encoding="utf-8") as f:
        json.dump(summary, f)
        f.write("\n")
    for what, names in summary["failures"].items():
        print("failed: %s: %s" % (what, ", ".join(names)))
    for what in summary["flaky"]:
        print("failed first, then passed: " + what)
    # What Bazel did not even start counts as failed.
    print("%d passed, %d failed, %d skipped" % (
        summary["passed"], summary["failed"] + summary["not run"], summary["skipped"]), flush=True)
    return 0 if summary["failed"] + summary["not run"] == 0 else 1


# --- docs -------------------------------------------------------------------


def _number(n):
    return "{:,}".format(n)


def _row(summary):
    found = ["%s: %s" % (what, ", ".join(names)) for what, names in summary["failures"].items()]
    found += ["%s failed first, then passed" % what for what in summary["flaky"]]
    if summary["not run"]:
        found.append("targets that did not run: %d" % summary["not run"])
    return "| %d | `%s`%s | %s | %d | %s | %s | %s | %s | %.1f | %s |" % (
        summary["shard"], summary["commit"][:12], " with changes" if summary["commit"].endswith("-changed") else "",
        summary["date"], summary["targets"], _number(summary["passed"]), _number(summary["failed"]),
        _number(summary["skipped"]), _number(summary["seconds"]), summary["load"], "<br>".join(found) or "nothing")


def table(summaries, shards=SHARDS):
    """Markdown: a row for each shard, 'not run' where there is no summary of it, and their sum."""
    by_shard = {s["shard"]: s for s in summaries if s["of"] == shards}
    lines = ["| shard | last run at | on (UTC) | targets | passed | failed | skipped | seconds | load at the start | what it found |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    for shard in range(1, shards + 1):
        lines.append(_row(by_shard[shard]) if shard in by_shard else "| %d | not run | | | | | | | | |" % shard)
    if by_shard:
        total = {what: _number(sum(s[what] for s in by_shard.values()))
                 for what in ("targets", "passed", "failed", "skipped", "seconds")}
        commits = len({s["commit"] for s in by_shard.values()})
        lines.append("| together | %d of %d shards, at %s | | %s | %s | %s | %s | %s | | |" % (
            len(by_shard), shards, "one commit" if commits == 1 else "%d commits" % commits, total["targets"],
            total["passed"], total["failed"], total["skipped"], total["seconds"]))
    return "\n".join(lines) + "\n"


def read_summaries(path=SUMMARIES):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f if line.strip()]


def with_table(page, summaries):
    """The text of docs/testing.md with the table that these summaries make."""
    head, _, rest = page.partition(BEGIN)
    tail = rest.partition(END)[2]
    return head + BEGIN + table(summaries) + END + tail


def write_page():
    with open(PAGE, encoding="utf-8") as f:
        page = f.read()
    with open(PAGE, "w", encoding="utf-8") as f:
        f.write(with_table(page, read_summaries()))


def merge(old, new):
    """Summaries, the latest for each shard."""
    latest = {(s["of"], s["shard"]): s for s in old}
    for s in sorted(new, key=lambda s: s["date"]):
        before = latest.get((s["of"], s["shard"]))
        if before is None or before["date"] <= s["date"]:
            latest[s["of"], s["shard"]] = s
    return [latest[key] for key in sorted(latest)]


def write_durations(durations, path=DURATIONS):
    with open(path, encoding="utf-8") as f:
        head = [line for line in f if line.startswith("#")]
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(head)
        f.writelines("%s %s %d\n" % (*key, max(1, round(s))) for key, s in sorted(durations.items()))


def add(paths):
    if not paths:
        paths = [os.path.join(at, name) for at, _, names in os.walk(state_directory()) for name in names
                 if name.endswith(".json")]
    new = []
    for path in paths:
        with open(path, encoding="utf-8") as f:
            new.append(json.load(f))
    durations = read_durations()
    for summary in new:
        for what, seconds in summary.pop("durations").items():
            durations[tuple(what.split())] = seconds
    write_durations(durations)
    summaries = merge(read_summaries(), new)
    with open(SUMMARIES, "w", encoding="utf-8") as f:
        f.writelines(json.dumps(s) + "\n" for s in summaries)
    write_page()


def plan(shards):
    durations = read_durations()
    for number, tests in enumerate(assign(tests_of(query_targets(), durations), shards, durations), 1):
        counts = collections.Counter(t.config for t in tests)
        print("%d/%d: %s; about %.0f minutes" % (
            number, shards, ", ".join("%d tests of %s" % (counts[c], c) for c in OPTIONS if counts[c]),
            expected_seconds(tests, durations) / 60))


def main(argv):
    command, rest = (argv[0] if argv else ""), argv[1:]
    if command == "run" and len(rest) == 1:
        shard, slash, shards = rest[0].partition("/")
        if slash and shard.isdigit() and shards.isdigit() and 1 <= int(shard) <= int(shards):
            return run(int(shard), int(shards))
    elif command == "plan" and all(n.isdigit() and int(n) for n in rest[:1]) and len(rest) <= 1:
        return plan(int(rest[0]) if rest else SHARDS)
    elif command == "add":
        return add(rest)
    elif command == "page" and not rest:
        return write_page()
    sys.exit(__doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
