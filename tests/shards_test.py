"""tests/shards.py: every test of --all is in exactly one shard, and a shard goes on where it was cut off."""

import collections
import json
import os
import random
import stat
import subprocess
import sys
import tempfile
import unittest

from tests import shards

# A bazel that knows four targets, and answers as the file 'outcomes' says: {label: 'PASSED', 'FAILED' or 'DIE'}.
FAKE_BAZEL = r'''#!%s -SE
import json, os, signal, sys
here = os.path.dirname(os.path.abspath(__file__))
labels = [a for a in sys.argv if a.startswith("//")]
with open(os.path.join(here, "calls"), "a") as f:
    f.write(json.dumps(sys.argv[1:2] + labels) + "\n")
if sys.argv[1] == "query":
    print("<query>" + "".join(
        '<rule class="py_test" name="//x:%%s"><string name="size" value="small"/><list name="tags">%%s</list></rule>'
        %% (name, tags) for name, tags in (("a", ""), ("b", '<string value="nosan"/>'), ("c", '<string value="nosan"/>'),
                                          ("d", '<string value="nosan"/><string value="manual"/>'))) + "</query>")
if sys.argv[1] == "test":
    with open(os.path.join(here, "outcomes")) as f:
        outcomes = json.load(f)
    events = [a for a in sys.argv if a.startswith("--build_event_json_file=")][0].partition("=")[2]
    with open(events, "a") as f:
        for label in labels:
            outcome = outcomes.get(label, "PASSED")
            if outcome == "DIE":
                f.flush()
                os.kill(os.getppid(), signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
            xml = os.path.join(here, label.replace("/", "").replace(":", "") + ".xml")
            with open(xml, "w") as x:
                x.write("<t><testcase name='one'/><testcase name='two'>%%s</testcase></t>" %% (
                    "<failure/>" if outcome == "FAILED" else "<skipped message='x.cc:1&#x0A;no such device'/>"))
            for event in ({"id": {"testResult": {"label": label}}, "testResult": {
                    "status": outcome, "testAttemptDurationMillis": "1500",
                    "testActionOutput": [{"name": "test.xml", "uri": "file://" + xml}]}},
                    {"id": {"testSummary": {"label": label}}, "testSummary": {"overallStatus": outcome}}):
                f.write(json.dumps(event) + "\n")
            f.flush()
            if os.environ.get("SLOWLY"):
                import time
                time.sleep(0.5)
'''


def random_targets(r, count):
    return [shards.Target("//%s:t%d_test" % (r.choice("abc"), i), r.choice(list(shards.TEST_SECONDS)),
                          frozenset(r.sample(["nosan", "slow", "local", "manual", "exclusive"], r.randint(0, 3))))
            for i in range(count)]


def random_durations(r, targets):
    return {(config, t.label): r.uniform(1, 500) for t in targets for config in shards.OPTIONS if r.random() < 0.4}


class AssignmentTest(unittest.TestCase):
    def test_each_test_is_in_exactly_one_shard(self):
        for seed in range(8):
            r = random.Random(seed)
            targets = random_targets(r, r.choice((0, 1, 7, 300)))
            durations = random_durations(r, targets)
            expected = collections.Counter()
            for target in targets:
                if "manual" not in target.tags:
                    for config in ["opt"] if "nosan" in target.tags else ["opt", "asan-ubsan", "tsan"]:
                        expected[config, target.label] += 1
            for n in (1, 2, 3, 4, 5, 8, 10, 37):
                with self.subTest(seed=seed, shards=n):
                    assigned = shards.assign(shards.tests_of(targets, durations), n, durations)
                    self.assertEqual(len(assigned), n)
                    found = collections.Counter((t.config, t.label) for tests in assigned for t in tests)
                    self.assertEqual(found, expected)
                    r.shuffle(targets)
                    again = shards.assign(shards.tests_of(targets, durations), n, durations)
                    self.assertEqual(again, assigned, "depends on the order of the targets")

    def test_shards_are_balanced_by_what_tests_took(self):
        targets = random_targets(random.Random(1), 300)
        durations = random_durations(random.Random(2), targets)
        assigned = shards.assign(shards.tests_of(targets, durations), 10, durations)
        by_config = {}
        for tests in assigned:
            configs = {t.config for t in tests}
            self.assertEqual(len(configs), 1, "a shard compiles for one configuration where there are enough shards")
            by_config.setdefault(configs.pop(), []).append(tests)
        for config, parts in by_config.items():
            loads = [sum(t.seconds for t in tests) for tests in parts]
            self.assertLessEqual(max(loads) - min(loads), max(t.seconds for tests in parts for t in tests), config)

    def test_targets_of_bazels_query(self):
        xml = ("<query><rule class='cc_test' name='//a:b'><string name='size' value='large'/><list name='tags'>"
               "<string value='slow'/><string value='nosan'/></list></rule><rule class='py_test' name='//c:d'/></query>")
        self.assertEqual(shards.parse_targets(xml), [shards.Target("//a:b", "large", frozenset({"slow", "nosan"})),
                                                     shards.Target("//c:d", "medium", frozenset())])

    def test_durations_of_the_tree(self):
        for (config, label), seconds in shards.read_durations().items():
            self.assertIn(config, shards.OPTIONS)
            self.assertTrue(label == "build" or label.startswith("//"), label)
            self.assertGreater(seconds, 0)


class RunTest(unittest.TestCase):
    """Shard 1 of 1 with a bazel that has tests a (also under sanitizers), b and c."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.tree = os.path.join(directory.name, "tree")
        self.bin = os.path.join(directory.name, "bin")
        for path in ("tests", "tools/ci"):
            os.makedirs(os.path.join(self.tree, path))
        os.makedirs(self.bin)
        for path in ("tests/shards.py", "tests/durations.txt", "tools/ci/test.py"):
            with open(os.path.join(shards.ROOT, path)) as source, open(os.path.join(self.tree, path), "w") as copy:
                copy.write(source.read())
        bazel = os.path.join(self.bin, "bazel")
        with open(bazel, "w") as f:
            f.write(FAKE_BAZEL % sys.executable)
        os.chmod(bazel, stat.S_IRWXU)
        self.env = dict(os.environ, PATH=self.bin + os.pathsep + os.environ["PATH"], PYTHONDONTWRITEBYTECODE="1",
                        MAYPOLE_SHARDS=os.path.join(directory.name, "state"))
        self.git("init", "-q")
        self.git("add", ".")
        self.commit("first")

    def git(self, *words):
        return subprocess.run(["git", "-C", self.tree, "-c", "user.name=t", "-c", "user.email=t@t"] + list(words),
                              check=True, stdout=subprocess.PIPE, text=True, env=self.env).stdout.strip()

    def commit(self, message):
        self.git("commit", "-q", "--allow-empty", "-m", message)
        self.head = self.git("rev-parse", "HEAD")

    def run_shard(self, **outcomes):
        """(status, last line, labels that were tested, summary)"""
        with open(os.path.join(self.bin, "outcomes"), "w") as f:
            json.dump({"//x:" + name: outcome for name, outcome in outcomes.items()}, f)
        open(os.path.join(self.bin, "calls"), "w").close()
        done = subprocess.run([sys.executable, os.path.join(self.tree, "tests", "shards.py"), "run", "1/1"],
                              stdout=subprocess.PIPE, text=True, timeout=60,
                              env=dict(self.env, SLOWLY="1" if "DIE" in outcomes.values() else ""))
        with open(os.path.join(self.bin, "calls")) as f:
            tested = [words[1:] for words in map(json.loads, f) if words[0] == "test"]
        summary = os.path.join(self.env["MAYPOLE_SHARDS"], self.head, "1-of-1.json")
        if os.path.exists(summary):
            with open(summary) as f:
                summary = json.load(f)
        return done.returncode, (done.stdout.splitlines() or [""])[-1], tested, summary

    def test_a_summary_adds_up(self):
        status, line, tested, summary = self.run_shard(b="FAILED")
        self.assertEqual((status, line), (1, "5 passed, 1 failed, 4 skipped"))
        self.assertEqual(tested, [["//x:a", "//x:b", "//x:c"], ["//x:a"], ["//x:a"]])
        self.assertEqual((summary["targets"], summary["not run"]), (5, 0))
        self.assertEqual(summary["failures"], {"opt //x:b": ["two"]})
        self.assertEqual(summary["reasons"], {"no such device": 4})
        self.assertEqual(summary["durations"]["tsan //x:a"], 1.5)

    def test_it_goes_on_where_it_was_killed(self):
        status, _, tested, summary = self.run_shard(b="DIE")
        self.assertLess(status, 0)
        self.assertEqual(tested, [["//x:a", "//x:b", "//x:c"]])
        self.assertIsInstance(summary, str, "there is none yet")
        status, line, tested, summary = self.run_shard()
        self.assertEqual((status, line), (0, "5 passed, 0 failed, 5 skipped"))
        self.assertEqual(tested, [["//x:b", "//x:c"], ["//x:a"], ["//x:a"]])
        self.assertEqual(summary["tries"], 2)
        self.assertEqual(self.run_shard()[1:3], (line, []), "all have passed")

    def test_what_failed_runs_again_and_is_not_forgotten(self):
        self.run_shard(c="FAILED")
        status, line, tested, summary = self.run_shard()
        self.assertEqual((status, line, tested), (0, "5 passed, 0 failed, 5 skipped", [["//x:c"]]))
        self.assertEqual(summary["flaky"], ["opt //x:c"])
        self.assertIn("opt //x:c failed first, then passed", shards.table([summary], 1))

    def test_another_commit_begins_anew(self):
        self.run_shard()
        self.commit("second")
        self.assertEqual(len(self.run_shard()[2]), 3)
        with open(os.path.join(self.tree, "new"), "w"):
            pass
        self.head += "-changed"
        for _ in range(2):
            self.assertEqual(len(self.run_shard()[2]), 3, "a tree with changes is tested each time")


class PageTest(unittest.TestCase):
    SUMMARY = {"shard": 2, "of": 3, "commit": "0123456789abcdef", "date": "2026-01-02 03:04", "load": 1.5, "tries": 1,
               "seconds": 1234, "build": {}, "targets": 5, "not run": 1, "passed": 40, "failed": 1, "skipped": 2,
               "failures": {"asan-ubsan //a:b": ["C.d"]}, "flaky": [], "reasons": {}}

    def test_a_shard_that_never_ran_has_no_figures(self):
        rows = shards.table([self.SUMMARY], 3).splitlines()[2:]
        self.assertEqual(rows[0], "| 1 | not run | | | | | | | | |")
        self.assertEqual(rows[1], "| 2 | `0123456789ab` | 2026-01-02 03:04 | 5 | 40 | 1 | 2 | 1,234 | 1.5 | "
                                  "asan-ubsan //a:b: C.d<br>targets that did not run: 1 |")
        self.assertEqual(rows[3], "| together | 1 of 3 shards, at one commit | | 5 | 40 | 1 | 2 | 1,234 | | |")
        self.assertEqual(len(shards.table([], 3).splitlines()), 5, "no sum of nothing")

    def test_the_latest_run_counts(self):
        later = dict(self.SUMMARY, date="2026-01-03 00:00", passed=41)
        for old, new in ((self.SUMMARY, later), (later, self.SUMMARY)):
            self.assertEqual(shards.merge([old], [new]), [later])
        other = dict(self.SUMMARY, shard=1)
        self.assertEqual(shards.merge([later], [other]), [other, later])

    def test_the_page_is_made_from_the_summaries(self):
        with open(shards.PAGE, encoding="utf-8") as f:
            page = f.read()
        self.assertEqual(shards.with_table(page, shards.read_summaries()), page, "run: tests/shards.py page")


if __name__ == "__main__":
    unittest.main()
