"""The job's timeline: one file that says which rank was late for what."""

import json
import os
import subprocess
import time
import unittest

import cluster
import harness

FAST_NS = 5_000_000  # how exactly a delay must appear
AHEAD_S = 1000


def load(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def last(events, tensor):
    """Those of the last operation of this name."""
    found = [e for e in events if e.get("args", {}).get("tensor") == tensor and "number" in e["args"]]
    number = max((e["args"]["number"] for e in found), default=0)
    return [e for e in found if e["args"]["number"] == number]


def parts(events, tensor):
    """{rank: arguments} of the parts of the last operation of this name."""
    return {e["args"]["rank"]: e["args"] for e in last(events, tensor) if e["cat"] == "operation"}


def critical(events, tensor):
    return [e for e in last(events, tensor) if e["cat"] == "critical_path"]


def processes(events):
    return {e["args"]["name"] for e in events if e["name"] == "process_name"}


def time_namespaces():
    """None, or the reason why a process cannot have a monotonic clock of its own."""
    if os.geteuid() != 0:
        return "time namespaces need root"
    ahead = ["unshare", "--time", "--monotonic", str(AHEAD_S), "--fork", "--", harness.PYTHON, "-c",
             "import time; print(time.monotonic())"]
    try:
        told = subprocess.run(ahead, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return "no time namespace: %s" % error
    return None if float(told) > time.monotonic() + AHEAD_S / 2 else "the kernel has no time namespaces"


NO_TIME_NAMESPACES = time_namespaces()


class TimelineTest(unittest.TestCase):
    def check_late(self, events, late_rank, moments, ahead_ns):
        """moments: by rank, when it has submitted "late", by its own clock, which
        is ahead by ahead_ns[rank]."""
        found = parts(events, "late")
        self.assertEqual(sorted(found), list(range(len(moments))))
        host = [[t - ahead for t in m] for m, ahead in zip(moments, ahead_ns)]
        others = [m for r, m in enumerate(host) if r != late_rank]
        before, after = host[late_rank]
        # Each rank arrived between the two moments that it has noted.
        least = before - max(m[1] for m in others) - FAST_NS
        most = after - max(m[0] for m in others) + FAST_NS
        for args in found.values():
            self.assertEqual(args["last_rank"], late_rank, found)
            late_ns = args["late_after_previous_ms"] * 1e6
            self.assertGreaterEqual(late_ns, least)
            self.assertLessEqual(late_ns, most)
        first = before - min(m[1] for m in others) - FAST_NS
        self.assertGreaterEqual(found[0]["late_after_first_ms"] * 1e6, first)
        self.assertGreater(found[late_rank]["late_after_previous_ms"], 150)
        marked = critical(events, "late")
        self.assertEqual([m["args"]["rank"] for m in marked], [late_rank])
        self.assertIn("late by", marked[0]["name"])
        arrows = [e for e in events if e["ph"] == "s" and e["tid"] == marked[0]["tid"]
                  and e["pid"] == marked[0]["pid"] and abs(e["ts"] - marked[0]["ts"] - marked[0]["dur"]) < 1]
        self.assertEqual(len(arrows), len(moments) - 1)

    def check_all_operations(self, events, size):
        for name in ["gradient.%d" % i for i in range(5)] + ['a "quoted" \\ name\twith \u00e4', "gathered", "large"]:
            self.assertEqual(sorted(parts(events, name)), list(range(size)), name)
            self.assertTrue(all("last_rank" in p for p in parts(events, name).values()), name)
        self.assertEqual(parts(events, "not in the timeline"), {})

    def two_nodes(self, prefix, ahead_ns):
        with cluster.Cluster() as c:
            address = c.coordinator()
            agents = [c.agent(0, address), c.agent(1, address, prefix=prefix)]
            ranks = [c.rank(r, 4, agents[r // 2], node=r // 2, nodes=2, local_rank=r % 2, program="timeline.py",
                            args=["all", c.path("timeline")], prefix=prefix if r >= 2 else ()) for r in range(4)]
            c.check_ok(ranks)
            records = [c.record(r) for r in range(4)]
            for n, late_rank in ((1, 3), (2, 1)):
                path = c.path("timeline.%d" % n)
                events = load(path)
                moments = [r["moments"][n - 1] for r in records]
                self.check_late(events, late_rank, moments, ahead_ns)
                self.check_all_operations(events, 4)
                self.assertLessEqual({"rank 0 (n0)", "rank 1 (n0)", "rank 2 (n1)", "rank 3 (n1)", "executor n0",
                                      "executor n1"}, processes(events))
                kinds = {e.get("cat") for e in events}
                self.assertLessEqual({"operation", "phase", "order", "network"}, kinds)
                # Marked only where it was asked for.
                self.assertEqual("presence" in kinds, n == 2)
                names = {e["name"] for e in events if e.get("cat") == "phase"}
                self.assertLessEqual({"NODES", "DATA"}, names)
            # Complete when stop_timeline() returned.
            self.assertEqual([r["complete"] for r in records], [os.path.getsize(path)] * 4)

    def test_two_nodes(self):
        self.two_nodes((), [0] * 4)

    @unittest.skipIf(NO_TIME_NAMESPACES, NO_TIME_NAMESPACES)
    def test_clocks_of_nodes_differ(self):
        ahead = ["unshare", "--time", "--monotonic", str(AHEAD_S), "--fork", "--"]
        self.two_nodes(ahead, [0, 0, AHEAD_S * 10**9, AHEAD_S * 10**9])

    def test_one_rank_starts_it_on_one_node(self):
        with harness.Job(np=3, program="timeline.py", args=["one", "t.json"]) as job:
            job.check_ok()
            events = load(os.path.join(job.dir, "here", "t.json"))
            self.check_late(events, 0, [r["moments"] for r in job.records()], [0] * 3)
            self.check_all_operations(events, 3)

    def test_environment_of_all_ranks(self):
        with harness.Job(np=4, nodes=2, program="timeline.py", args=["environment"],
                         launcher_args=["--timeline-filename", "e.json", "--timeline-mark-cycles"]) as job:
            job.check_ok()
            events = load(os.path.join(job.dir, "e.json"))
            self.check_late(events, 3, [r["moments"] for r in job.records()], [0] * 4)

    def test_a_path_that_is_no_utf8(self):
        name = os.fsdecode(b"\xff.json")
        with harness.Job(np=2, nodes=2, program="timeline.py", args=["environment"],
                         launcher_args=["--timeline-filename", name]) as job:
            job.check_ok()
            events = load(os.path.join(job.dir, name))
            self.check_late(events, 1, [r["moments"] for r in job.records()], [0] * 2)

    def written(self, job, name, tensor, rank):
        """How often the file, which is not complete, has this rank's part of an operation of this name."""
        with open(os.path.join(job.dir, name), encoding="utf-8") as f:
            lines = f.read().rpartition("\n")[0].rstrip().rstrip(",")
        arguments = [e["args"] for e in json.loads(lines + "]") if e.get("cat") == "operation"]
        return sum(a["tensor"] == tensor and a["rank"] == rank for a in arguments)

    def test_a_killed_rank_leaves_a_file(self):
        with harness.Job(np=2, program="timeline.py", args=["killed", "k.json"]) as job:
            job.await_file("running.0")
            job.await_file("running.1")
            # The timeline sends what it has ten times a second.
            # The program reduces "late" twice.
            harness.wait_until(lambda: self.written(job, "k.json", "late", 1) == 2, 30, "the records of rank 1")
            harness.kill(job.rank_pid(1))
            job.wait(60)
            self.assertIn("rank 1", job.record(0)["error"])
            events = load(os.path.join(job.dir, "k.json"))
            self.assertEqual(sorted(parts(events, "late")), [0, 1])
            self.assertTrue(parts(events, "never")[0]["failed"])

    def test_a_file_that_cannot_be_opened(self):
        with harness.Job(np=2, program="timeline.py", args=["bad", "/nowhere/t.json"]) as job:
            job.check_ok()
            errors = [r["error"] for r in job.records() if r["error"]]
            self.assertGreaterEqual(len(errors), 1)
            for error in errors:
                self.assertIn("'/nowhere/t.json' cannot be opened: No such file or directory", error)


if __name__ == "__main__":
    unittest.main()
