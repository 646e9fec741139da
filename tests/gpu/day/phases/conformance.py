"""The conformance suite, tests/gpu/conformance: each test suite in a process of its own, because one may crash."""

import json
import os
import tempfile

_SUITE_SECONDS = 25


def _suites(listing):
    return [line.strip().rstrip(".") for line in listing.splitlines() if line and not line[0].isspace() and
            line.rstrip().endswith(".")]


def run(day):
    program = os.path.join(day.folder, "conformance")
    for suite in _suites(day.run([program, "--gtest_list_tests"], 10).stdout):
        with tempfile.TemporaryDirectory() as work, day.check(suite) as values:
            report = os.path.join(work, "report.json")
            try:
                done = day.run([program, "--gtest_filter=%s.*" % suite, "--gtest_output=json:" + report], _SUITE_SECONDS,
                               expect=None)
            finally:
                if os.path.exists(report):
                    values.update(_read(report))
            if done.returncode != 0 or not values.get("tests"):
                raise AssertionError("status %d: %s" % (done.returncode, values.get("failures") or done.stdout[-600:]))


def _read(report):
    """The tests with their seconds (or "skipped"), the failures, and the properties that tests have recorded."""
    with open(report, encoding="utf-8") as f:
        suites = json.load(f)["testsuites"]
    found = {"tests": {}, "failures": [], "properties": {}}
    for test in (test for suite in suites for test in suite["testsuite"]):
        skipped = test.get("result") == "SKIPPED"
        found["tests"][test["name"]] = "skipped" if skipped else float(test.get("time", "0s").rstrip("s"))
        found["failures"] += ["%s: %s" % (test["name"], f["failure"][:400]) for f in test.get("failures", [])]
        known = ("name", "file", "line", "status", "result", "timestamp", "time", "classname", "failures", "value_param",
                 "type_param")
        found["properties"].update({"%s.%s" % (test["name"], k): v for k, v in test.items() if k not in known})
    return found
