"""For tests: the queries of deploy/ and docs/metrics.md, and the metrics that exist."""

import json
import os
import re

import harness


def _read(*path):
    with open(os.path.join(harness.ROOT, *path)) as f:
        return f.read()


def documented():
    """{part: {metric: (type, labels)}} of the tables of docs/metrics.md."""
    parts, part = {}, None
    for line in _read("docs", "metrics.md").splitlines():
        if line.startswith("## "):
            part = parts.setdefault(line[3:].strip(), {})
        row = re.match(r"\| `(\w+)` \| (gauge|counter|histogram) \|([^|]*)\|", line)
        if row:
            part[row.group(1)] = row.group(2), frozenset(re.findall(r"`(\w+)`", row.group(3)))
    return parts


def metrics_in(text):
    """The metrics that a query uses; a histogram's name counts only with its ending."""
    histograms = {name for part in documented().values() for name, (kind, _) in part.items() if kind == "histogram"}
    found = set()
    for name in re.findall(r"\b(?:maypole|process)_\w+", text):
        base, ending = re.fullmatch("(.*?)(_bucket|_sum|_count)?", name).groups()
        if (base in histograms) != bool(ending):
            raise AssertionError("%s is no series" % name)
        found.add(base)
    return found


def of_page():
    page = re.search("```promql\n(.*?)```", _read("docs", "metrics.md"), re.S).group(1)
    return [line for line in page.splitlines() if not line.startswith("#")]


def of_alerts():
    """{alert: its expression}"""
    return dict(re.findall("- alert: (.*)\n +expr: (.*)", _read("deploy", "prometheus", "alerts.yml")))


def board():
    return json.loads(_read("deploy", "grafana", "maypole.json"))


def panels(of):
    """All panels of a board that show something, also those in collapsed rows."""
    every = [panel for top in of["panels"] for panel in [top] + top.get("panels", [])]
    return [panel for panel in every if panel["type"] != "row"]


def filled(text, job=".*", node=".*", window="5s"):
    """A query of the board as Grafana sends it."""
    for name, value in (("$job", job), ("$node", node), ("$__rate_interval", window), ("$__range", window)):
        text = text.replace(name, value)
    return text
