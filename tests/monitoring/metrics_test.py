"""A known program changes the metrics of coordinator and agents by known amounts.

Also: docs/metrics.md lists exactly the existing metrics, with type and labels;
no tensor name breaks a log line.
"""

import re
import unittest
import urllib.request

import harness
import queries
from known_job import Agents, KnownJob

OPERATIONS, ELEMENTS = 30, 1000


def scrape(address):
    """{name{labels}: value} of an endpoint; job labels are left out."""
    with urllib.request.urlopen("http://%s/metrics" % address, timeout=5) as reply:
        text = reply.read().decode()
    values = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            labels = sorted(x for x in re.findall(r'\w+="[^"]*"', name) if not x.startswith(("job=", "uid=")))
            name = name.partition("{")[0] + ("{%s}" % ",".join(labels) if labels else "")
            values[name] = float(value)
    return values


class MetricsTest(unittest.TestCase):
    def run_on(self, nodes, look, *options):
        with harness.Job(np=4, nodes=nodes, program="steady.py", args=[OPERATIONS, ELEMENTS],
                         # The coordinator counts what it has issued itself.
                         launcher_args=["--coordinator-flag=--frozen_nodes=0", *options]) as job:
            for r in range(4):
                job.await_file("counted.%d" % r)
            look(job.endpoints())
            job.touch("end")
            job.check_ok(30)

    def expect(self, address, wanted):
        def there():
            self.seen = scrape(address)
            return all(self.seen.get(name) == value for name, value in wanted.items())
        try:
            harness.wait_until(there, 5, "metrics")
        except AssertionError:
            self.assertEqual({n: self.seen.get(n) for n in wanted}, wanted)
        return self.seen

    def test_two_nodes(self):
        def look(endpoints):
            self.assertEqual(sorted(endpoints), ["admin", "coordinator", "node0", "node1"])
            self.expect(endpoints["coordinator"], {
                'maypole_operations_total{kind="allreduce"}': OPERATIONS,
                'maypole_operation_bytes_total{kind="allreduce"}': OPERATIONS * ELEMENTS * 4,
                'maypole_operations_total{kind="broadcast"}': 1,
                'maypole_errors_total{kind="mismatch"}': 1,
                "maypole_ranks": 4, "maypole_nodes": 2, "maypole_jobs": 1,
                "maypole_pending_operations": 0,
                "maypole_negotiation_seconds_count": OPERATIONS + 1,
            })
            for node in ("node0", "node1"):
                seen = self.expect(endpoints[node], {
                    'maypole_executor_operations_total{kind="allreduce"}': OPERATIONS,
                    'maypole_executor_operation_bytes_total{kind="allreduce"}': OPERATIONS * ELEMENTS * 4,
                    "maypole_local_ranks": 2,
                    "maypole_executors": 1,
                    "maypole_peer_nodes": 1,
                    "maypole_encrypted_nodes": 0,
                    "maypole_ucx_nodes": 0,
                })
                self.assertGreaterEqual(seen['maypole_network_bytes_total{direction="sent"}'],
                                        OPERATIONS * ELEMENTS * 4)
                self.assertGreater(seen["maypole_wire_bytes_per_second"], 1e6)
        self.run_on(2, look)

    def test_nodes_that_are_encrypted(self):
        def look(endpoints):
            for node in ("node0", "node1"):
                self.expect(endpoints[node], {"maypole_peer_nodes": 1, "maypole_encrypted_nodes": 1})
        self.run_on(2, look, "--encrypt")

    def test_one_node(self):
        def look(endpoints):
            # Ranks of one node agree without the coordinator.
            self.expect(endpoints["coordinator"], {"maypole_ranks": 4, "maypole_nodes": 1})
            self.expect(endpoints["node0"], {
                'maypole_executor_operations_total{kind="allreduce"}': OPERATIONS,
                'maypole_executor_operation_bytes_total{kind="allreduce"}': OPERATIONS * ELEMENTS * 4,
                'maypole_executor_operations_total{kind="broadcast"}': 1,
                'maypole_errors_total{kind="mismatch"}': 1,
                "maypole_local_ranks": 4,
                "maypole_peer_nodes": 0,
                "maypole_wire_bytes_per_second": 0,
            })
        self.run_on(1, look)


def shown(address):
    """{metric: (type, labels)} of an endpoint."""
    with urllib.request.urlopen("http://%s/metrics" % address, timeout=5) as reply:
        text = reply.read().decode()
    types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.M))
    labels = {name: set() for name in types}
    for sample, inside in re.findall(r"^(\w+)(?:\{([^}]*)\})? ", text, re.M):
        name = sample if sample in types else re.sub("_(bucket|sum|count)$", "", sample)
        labels[name] |= set(re.findall(r'(\w+)="', inside)) - {"le", "quantile"}
    return {name: (kind, frozenset(labels[name])) for name, kind in types.items()}


class PageTest(unittest.TestCase):
    def test_page_and_endpoints_tell_of_the_same_metrics(self):
        page = queries.documented()
        with harness.Job(np=4, nodes=2, program="steady.py", args=[3, 10]) as job:
            for r in range(4):
                job.await_file("counted.%d" % r)
            endpoints = job.endpoints()
            both = page["Both"]
            self.assertGreater(len(both), 5)
            self.maxDiff = None
            self.assertEqual(shown(endpoints["coordinator"]), {**page["Coordinator"], **both})
            for node in ("node0", "node1"):
                self.assertEqual(shown(endpoints[node]), {**page["Agent"], **both})
            job.touch("end")
            job.check_ok(30)


def fields(line):
    """{key: value} of a log line; fails if it is none."""
    found = re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|[^" ]+)(?: |$)', line)
    if " ".join("%s=%s" % f for f in found) != line:
        raise AssertionError("no log line: %r" % line)
    return dict(found)


class LogTest(unittest.TestCase):
    def test_a_name_cannot_forge_an_event(self):
        name = 'w" event=forged x="\n\x1b[2Jevent=forged reason="'
        with Agents(2, ["--log_level=info"]) as agents, KnownJob(
                agents, "a", 2, [1, 10, 1, 0], {"MAYPOLE_TEST_NAME": name}) as job:
            for phase in ("operations", "mismatch", "late"):
                job.phase(phase)
            self.assertEqual(job.end(), [0, 0])
            events = {}

            def over():
                events.clear()
                for line in agents.log().splitlines():
                    seen = fields(line)
                    self.assertLessEqual({"time", "level", "program", "event"}, set(seen), line)
                    events.setdefault((seen["program"], seen["event"]), []).append(seen)
                return ("maypole-executor", "epoch_over") in events
            harness.wait_until(over, 20, "the end of the epoch")
        self.assertEqual([e for e in events if "forged" in e[1]], [])
        for program in ("maypole-coordinator", "maypole-executor"):
            failed = events[program, "operation_failed"][0]
            self.assertEqual((failed["job"], failed["epoch"]), ("a", "1"), failed)
            self.assertEqual(failed["tensor"], r'"w\" event=forged x=\"\n\033[2Jevent=forged reason=\""')
        for program, event in (("maypole-worker", "executor_started"), ("maypole-executor", "epoch_start"),
                               ("maypole-executor", "rank_left"), ("maypole-coordinator", "session_opened"),
                               ("maypole-coordinator", "epoch_start"), ("maypole-coordinator", "epoch_end")):
            for seen in events[program, event]:
                self.assertEqual(seen["job"], "a", seen)
                if event.startswith("epoch") or event == "rank_left":
                    self.assertEqual(seen["epoch"], "1", seen)


if __name__ == "__main__":
    unittest.main()
