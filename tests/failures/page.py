"""Renders docs/failures.md from the runs in docs/failures.jsonl.

A line of the raw file is one run of one fault: {"fault", "layout", "seconds":
{who: seconds}, "pause": seconds or null, "texts": {who: text or null}}; the
first line describes the machine.
"""

import json
import re

import registry

HEAD = """# What each rank sees when something fails

Made by `tests/failures/measure.py` from [failures.jsonl](failures.jsonl); do not edit. %(where)s

The tests inject every fault into a real job while **a second job runs on the same coordinator and the same agents**. The second job must continue
without an error. *Other job* is the longest time between two of its steps during the fault. (It pauses for 5 ms after each step;
on busy cores a job pauses for some tens of milliseconds even without a fault.)

*After* is the time from the fault until the slowest of the named ranks got its error: median / 99th percentile (with fewer than 100 runs, the slowest run).
Layouts are nodes x ranks per node. The nodes of a layout are agents on one machine; in "The network" they are network
namespaces connected by a wire. `N` in an error stands for process ids and ports. A fault without a line under *Errors* gives ranks no error.
To run one fault: `bazel test -c opt //tests/failures:ranks_test --test_output=all --test_arg=rank-exit0-wait`, with the test below its table. Without `--test_arg` all but the long ones run.

What a user does about an error: [troubleshooting.md](troubleshooting.md).
"""

TITLES = {
    "ranks": "A rank ends or stops", "daemons": "A daemon is killed", "wire": "The network",
    "ucx": "With UCX between nodes",
    "late": "Late and frozen ranks", "deadlock": "Ranks wait for each other",
    "memory": "Memory", "disk": "A full disk", "leaving": "Leaving, forking, Ctrl-C", "mismatches": "Ranks disagree",
}


def percentile(values, share):
    """The smallest value that `share` of all values do not exceed."""
    ordered = sorted(values)
    at = max(0, -int(-share * len(ordered) // 1) - 1)
    return ordered[at]


def milliseconds(seconds):
    ms = 1000 * seconds
    return "%.1f ms" % ms if ms < 10 else "%.0f ms" % ms if ms < 1000 else "%.2f s" % seconds


def both(values):
    return "%s / %s" % (milliseconds(percentile(values, 0.5)), milliseconds(percentile(values, 0.99)))


def normal(text):
    """The text without the parts that differ from run to run."""
    text = re.sub(r"pid \d+", "pid N", text)
    text = re.sub(r"/tmp/mp\w+/", "/run/", text)
    text = re.sub(r"host [\w.-]+", "host H", text)
    return re.sub(r"(\d+\.\d+\.\d+\.\d+):\d+", r"\1:N", text)


def read(path):
    """(the first line, the runs)"""
    with open(path, encoding="utf-8") as f:
        lines = [json.loads(line) for line in f]
    return lines[0], lines[1:]


def row(fault, by_layout):
    """by_layout: [(layout, its runs)]. A line of a cell for each layout."""
    after, pauses = [], []
    for layout, runs in by_layout:
        seconds = {}
        for run in runs:
            for who, value in run["seconds"].items():
                seconds.setdefault(who, []).append(value)
        after.append("; ".join("%s: %s" % (who, both(values)) for who, values in seconds.items()) or "-")
        pause = [run["pause"] for run in runs if run["pause"] is not None]
        pauses.append(both(pause) if pause else "-")
    cells = [[layout for layout, _ in by_layout], after, pauses, [str(len(runs)) for _, runs in by_layout]]
    layouts, after, pauses, counts = ("<br>".join(lines) for lines in cells)
    return "| `%s` | %s | %s | %s | %s | %s | %s |" % (fault.name, fault.what, fault.sees, layouts, after, pauses, counts)


def told(fault, runs):
    """The errors of the ranks, each text once."""
    lines = []
    for run in runs:
        for who, text in run.get("texts", {}).items():
            line = "%s, %s: %s" % (fault.name, who, normal(text or ""))
            if text is not None and line not in lines:
                lines.append(line)
    return lines


def section(topic, faults, runs):
    here = [f for f in faults if any(run["fault"] == f.name for run in runs)]
    if not here:
        return []
    out = ["", "## " + TITLES[topic], "",
           "| fault | what happens | what ranks see | layout | after | other job | runs |", "|---|---|---|---|---|---|---|"]
    errors = []
    for fault in here:
        of = [run for run in runs if run["fault"] == fault.name]
        out.append(row(fault, [(layout, [run for run in of if run["layout"] == layout]) for layout in fault.layouts
                               if any(run["layout"] == layout for run in of)]))
        errors += told(fault, of)
    out += ["", "Test: `//tests/failures:%s_test`.%s" % (topic, " Errors:" if errors else "")]
    return out + ["", "```text"] + errors + ["```"] if errors else out


def render(where, runs):
    """The page's text."""
    out = [HEAD % {"where": "Measured on %(machine)s." % where}]
    for topic, faults in registry.TOPICS.items():
        out += section(topic, faults, runs)
    return "\n".join(out).rstrip() + "\n"
