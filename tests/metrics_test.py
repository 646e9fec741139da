"""A known program moves the metrics of coordinator and agents by what it did."""

import re
import unittest
import urllib.request

import harness

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
    def run_on(self, nodes, look):
        with harness.Job(np=4, nodes=nodes, program="steady.py", args=[OPERATIONS, ELEMENTS]) as job:
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
            self.assertEqual(sorted(endpoints), ["coordinator", "node0", "node1"])
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
                })
                self.assertGreaterEqual(seen['maypole_network_bytes_total{direction="sent"}'],
                                        OPERATIONS * ELEMENTS * 4)
        self.run_on(2, look)

    def test_one_node(self):
        def look(endpoints):
            # Ranks of one node agree without the coordinator.
            self.expect(endpoints["coordinator"], {"maypole_ranks": 4, "maypole_nodes": 1})
            self.expect(endpoints["node0"], {
                'maypole_executor_operations_total{kind="allreduce"}': OPERATIONS + 1,
                "maypole_local_ranks": 4,
            })
        self.run_on(1, look)


if __name__ == "__main__":
    unittest.main()
