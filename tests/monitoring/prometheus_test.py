"""A known program changes the values in a real Prometheus by known amounts.

Also: promtool accepts every endpoint, and the queries of docs/metrics.md work.
"""

import os
import re
import time
import unittest

import fake_gpu
import harness
import prometheus_server
import queries
from known_job import Agents, KnownJob

OPERATIONS, ELEMENTS, GROUPS, LATE = 20, 1000, 5, 0.3
# The expected totals of "operations" of programs/known.py.
ALLREDUCES = OPERATIONS + 3 * GROUPS + 1
ALLREDUCE_BYTES = 4 * (OPERATIONS * ELEMENTS + GROUPS * (3 + 7 + 11) + 10)


def gather_bytes(np):
    return 4 * 6 * np


def known(operations=OPERATIONS, late=LATE):
    return [operations, ELEMENTS, GROUPS, late]


def settled(server, query):
    """The query's value once it has not moved for longer than agents sample."""
    seen = [server.value(query), time.monotonic()]

    def still():
        now = server.value(query)
        if now != seen[0]:
            seen[:] = now, time.monotonic()
        return time.monotonic() - seen[1] > 1.2
    harness.wait_until(still, 30, query + " to settle")
    return seen[0]


@unittest.skipIf(prometheus_server.missing(), prometheus_server.missing())
class PrometheusTest(unittest.TestCase):
    def check_moves(self, server, before, expected):
        """Checks that the queries have grown by exactly these amounts."""
        wanted = {query: before[query] + by for query, by in expected.items()}
        server.await_values(wanted)

    def values(self, server, queries):
        return {query: server.value(query) for query in queries}

    def check_between(self, value, least, most, what):
        self.assertGreaterEqual(value, least, what)
        self.assertLessEqual(value, most, what)

    def check_late(self, server, job, lateness):
        """The phase `late`: {query: ranks whose wait it is}, each all of it."""
        before = {query: settled(server, query) for query in lateness}
        job.phase("late")
        waited = job.waited()
        for r in range(job.np - 1):
            self.check_between(waited[r], LATE * 0.9, LATE * 20, "rank %d" % r)
        for query, ranks in lateness.items():
            grown = settled(server, query) - before[query]
            whole = sum(waited[r] for r in ranks)
            # None of it is lost, and none counts twice.
            self.check_between(grown, 0.85 * whole, whole, query)

    def check_endpoints(self, endpoints):
        for name, address in endpoints.items():
            text = prometheus_server.fetch(address)
            self.assertEqual(prometheus_server.check_metrics(text), (0, ""), name)

    def test_one_node(self):
        np = 4
        with Agents(1) as agents, KnownJob(agents, "a", np, known()) as job, \
                prometheus_server.Prometheus(agents.endpoints) as server:
            server.await_up()
            node = '{endpoint="node0",job="a",uid="%d"' % os.geteuid()
            job_of = lambda name, more="": name + node + more + "}"
            kind = lambda name, k: job_of(name, ',kind="%s"' % k)
            operations, size = "maypole_executor_operations_total", "maypole_executor_operation_bytes_total"
            server.await_values({job_of("maypole_local_ranks"): np}, 60)
            done = {
                kind(operations, "allreduce"): ALLREDUCES, kind(size, "allreduce"): ALLREDUCE_BYTES,
                kind(operations, "broadcast"): 1, kind(size, "broadcast"): 20,
                kind(operations, "allgather"): 1, kind(size, "allgather"): gather_bytes(np),
                kind(operations, "alltoall"): 0, kind(operations, "barrier"): 0,
                kind("maypole_errors_total", "mismatch"): 0,
                job_of("maypole_executor_runs_total"): 0,
            }
            self.assertEqual(self.values(server, done), dict.fromkeys(done, 0))
            job.phase("operations")
            server.await_values(done)

            failed = dict.fromkeys(done, 0)
            failed[kind("maypole_errors_total", "mismatch")] = 1
            before = self.values(server, done)
            job.phase("mismatch")
            self.check_moves(server, before, failed)

            before = self.values(server, done)
            waits = 'sum(%s)' % job_of("maypole_waits_total")
            waits_before = settled(server, waits)
            ranks_wait = job_of("maypole_wait_seconds_total", ',for="ranks"')
            self.check_late(server, job, {
                job_of("maypole_rank_late_seconds_total", ',rank="%d"' % (np - 1)): range(np - 1),
                ranks_wait: range(np - 1)})
            late = dict.fromkeys(done, 0)
            late[kind(operations, "allreduce")] = 1
            late[kind(size, "allreduce")] = 40
            self.check_moves(server, before, late)
            self.check_between(server.value(waits) - waits_before, np - 1, np, "waits")
            others = server.query(job_of("maypole_rank_late_seconds_total", ',rank!="%d"' % (np - 1)))
            self.assertEqual(len(others), np - 1)
            # The ranks of one node agree without the coordinator.
            self.assertEqual(server.value('sum(maypole_operations_total{endpoint="coordinator"})'), 0)
            self.assertEqual(server.value('maypole_node_late_seconds_total{endpoint="coordinator",job="a",node="n0"}'), 0)
            self.assertEqual(server.value('maypole_ranks{endpoint="coordinator"}'), np)
            self.check_endpoints(agents.endpoints)
            self.assertEqual(job.end(), [0] * np)
            server.await_values({'maypole_ranks{endpoint="coordinator"}': 0, job_of("maypole_local_ranks"): 0})

    def test_two_nodes(self):
        np = 4
        with Agents(2) as agents, KnownJob(agents, "a", np, known()) as job, \
                prometheus_server.Prometheus(agents.endpoints) as server:
            server.await_up()
            server.await_values({'maypole_ranks{endpoint="coordinator"}': np}, 60)
            on = lambda endpoint, name, more="": '%s{endpoint="%s"%s}' % (name, endpoint, more)
            coordinator = lambda name, kind: on("coordinator", name, ',kind="%s"' % kind)
            all_operations = ALLREDUCES + 2
            done = {
                coordinator("maypole_operations_total", "allreduce"): ALLREDUCES,
                coordinator("maypole_operation_bytes_total", "allreduce"): ALLREDUCE_BYTES,
                coordinator("maypole_operations_total", "broadcast"): 1,
                coordinator("maypole_operation_bytes_total", "broadcast"): 20,
                coordinator("maypole_operations_total", "allgather"): 1,
                coordinator("maypole_operation_bytes_total", "allgather"): gather_bytes(np),
                coordinator("maypole_errors_total", "mismatch"): 0,
                on("coordinator", "maypole_negotiation_seconds_count"): all_operations,
                on("coordinator", "maypole_run_operations_sum"): all_operations,
                on("coordinator", "maypole_reconnects_total"): 0,
            }
            for node in ("node0", "node1"):
                more = ',job="a",kind="allreduce"'
                done.update({
                    on(node, "maypole_executor_operations_total", more): ALLREDUCES,
                    on(node, "maypole_executor_operation_bytes_total", more): ALLREDUCE_BYTES,
                    # Small operations are in no run of the node.
                    "%s + %s" % (on(node, "maypole_fused_operations_sum"),
                                 on(node, "maypole_small_operations_total")): all_operations,
                    on(node, "maypole_presence_operations_total"): all_operations,
                    on(node, "maypole_presence_seconds_count"): all_operations,
                    on(node, "maypole_errors_total", ',kind="operation_failed"'): 0,
                    on(node, "maypole_errors_total", ',kind="mismatch"'): 0,
                    'maypole_run_seconds_count{endpoint="%s"} - on() maypole_executor_runs_total{endpoint="%s"}' % (
                        node, node): 0,
                })
            self.assertEqual(self.values(server, done), dict.fromkeys(done, 0))
            job.phase("operations")
            server.await_values(done)
            runs = server.value(on("coordinator", "maypole_runs_total"))
            self.check_between(runs, OPERATIONS + 3, all_operations, "runs")
            for node in ("node0", "node1"):
                on_board = server.value(on(node, "maypole_executor_runs_total"))
                small = server.value(on(node, "maypole_small_operations_total"))
                self.check_between(runs, on_board, on_board + small, "runs with those of small operations")
                for direction in ("sent", "received"):
                    moved = server.value(on(node, "maypole_network_bytes_total", ',direction="%s"' % direction))
                    self.check_between(moved, ALLREDUCE_BYTES, 2 * ALLREDUCE_BYTES, direction)

            before = self.values(server, done)
            failed = dict.fromkeys(done, 0)
            failed[coordinator("maypole_errors_total", "mismatch")] = 1
            for node in ("node0", "node1"):
                failed[on(node, "maypole_errors_total", ',kind="operation_failed"')] = 1
                failed[on(node, "maypole_presence_operations_total")] = 1
            job.phase("mismatch")
            self.check_moves(server, before, failed)

            node_late = on("coordinator", "maypole_node_late_seconds_total", ',job="a",node="n1"')
            other_late = on("coordinator", "maypole_node_late_seconds_total", ',job="a",node="n0"')
            late_before = settled(server, node_late), settled(server, other_late)
            for_nodes = on("node0", "maypole_wait_seconds_total", ',for="nodes"')
            before_nodes = settled(server, for_nodes)
            before = self.values(server, done)
            self.check_late(server, job, {
                on("node1", "maypole_rank_late_seconds_total", ',rank="3"'): [2],
                on("node1", "maypole_wait_seconds_total", ',for="ranks"'): [2],
                'sum(%s)' % on("node0", "maypole_wait_seconds_total", ',for=~"ranks|nodes"'): [0, 1]})
            self.assertGreater(server.value(for_nodes) - before_nodes, LATE)  # of two ranks
            late = dict.fromkeys(done, 0)
            for query in done:
                if "_sum{" in query or "_count{" in query and " - " not in query or "presence_operations" in query:
                    late[query] = 1
                elif 'kind="allreduce"' in query:
                    late[query] = 40 if "_bytes_" in query else 1
            self.check_moves(server, before, late)
            self.check_between(server.value(node_late) - late_before[0], 0.85 * LATE, max(job.waited()), node_late)
            self.check_between(server.value(other_late) - late_before[1], 0, 0.2 * LATE, other_late)
            self.check_endpoints(agents.endpoints)
            self.assertEqual(job.end(), [0] * np)

    def test_two_jobs_of_a_node_are_in_one_scrape(self):
        with Agents(1) as agents, KnownJob(agents, "a", 2, known()) as a, KnownJob(agents, "b", 2, known(7)) as b, \
                prometheus_server.Prometheus(agents.endpoints) as server:
            server.await_up()
            a.phase("operations")
            b.phase("operations")
            query = 'maypole_executor_operations_total{endpoint="node0",kind="allreduce",job="%s"}'
            server.await_values({
                query % "a": ALLREDUCES, query % "b": ALLREDUCES - OPERATIONS + 7,
                'maypole_executors{endpoint="node0"}': 2, 'maypole_jobs{endpoint="coordinator"}': 2,
                'sum(maypole_local_ranks{endpoint="node0"})': 4,
                'count(maypole_executor_memory_bytes{endpoint="node0"} > 1e6)': 2,
                'count(maypole_executor_cpu_seconds_total{endpoint="node0"})': 2})
            self.check_endpoints(agents.endpoints)
            page = queries.of_page()
            self.assertGreater(len(page), 8)
            for query in page:
                server.query(query)
            per_job = dict((labels["job"], value) for labels, value in server.query(page[0]))
            self.assertEqual(per_job, {"a": 2, "b": 2})
            for phase in ("mismatch", "late"):
                a.begin(phase)
                b.begin(phase)
            self.assertEqual(a.end() + b.end(), [0] * 4)


@unittest.skipIf(prometheus_server.missing(), prometheus_server.missing())
class BoardTest(unittest.TestCase):
    """The queries of the Grafana board and of the alert rules, while three jobs run.

    In `frozen`, which runs without the coordinator, rank 2 of 4 is a straggler, on the second of two nodes; in
    `ordered`, whose operations are large and ordered by the coordinator, rank 1 of 2; `gpu` is on a fake GPU.
    """

    # In frozen, no larger than what goes with the news that it is ready; in ordered, so large that runs exchange it.
    FROZEN, ORDERED, SMALL, LARGE = 0.05, 0.1, 1000, 50000
    WINDOW = "8s"
    # Ratios of what does not happen in these jobs.
    NAN = {("Fusion", "frozen"), ("Fusion", "gpu"), ("Exchange of a run", "frozen"), ("Exchange of a run", "gpu"),
           ("Wait for the other nodes", "gpu"), ("Wait for the other nodes", "frozen")}

    def start(self, name, job):
        self.addCleanup(job.stop)
        self.targets.update({"%s.%s" % (name, daemon): address for daemon, address in job.endpoints().items()
                             if daemon != "admin"})
        return job

    def setUp(self):
        self.targets = {}
        self.frozen = self.start("frozen", harness.Job(
            4, nodes=2, program="straggler.py", args=[2, self.FROZEN, self.SMALL]))
        self.ordered = self.start("ordered", harness.Job(
            2, nodes=2, program="straggler.py", args=[1, self.ORDERED, self.LARGE],
            launcher_args=["--coordinator-flag=--frozen_nodes=0"]))
        self.gpu = self.start("gpu", fake_gpu.Job(2, "train.py", [1000000, "on_gpu"]))
        self.server = prometheus_server.Prometheus(self.targets)
        self.server.__enter__()
        self.addCleanup(self.server.__exit__, None, None, None)
        self.server.await_up(30)
        for job in (self.frozen, self.ordered):
            job.await_file("running.0", 120)
        harness.wait_until(lambda: self.server.query("maypole_gpu_operations_total > 20"), 60, "operations on the GPU")
        harness.wait_until(lambda: self.server.value("sum(maypole_frozen_jobs)") == 1, 60, "a frozen job")
        self.names = {labels["job"]: labels["endpoint"].partition(".")[0]
                      for labels, _ in self.server.query("maypole_local_ranks")}
        self.ids = {name: job for job, name in self.names.items()}
        time.sleep(10)  # until the window has nothing but this

    def look(self, **variables):
        """{(panel, letter of its query): {legend: value}} of the board; jobs have their names here."""
        seen = {}
        for panel in queries.panels(queries.board()):
            for target in panel["targets"]:
                series = seen.setdefault((panel["title"], target["refId"]), {})
                for labels, value in self.server.query(queries.filled(target["expr"], window=self.WINDOW, **variables)):
                    labels = dict(labels, job=self.names.get(labels.get("job"), labels.get("job")))
                    # Without the label, a KeyError.
                    legend = re.sub("{{(.*?)}}", lambda found, of=labels: of[found.group(1)], target["legendFormat"])
                    series[legend or labels["endpoint"]] = value
        return seen

    def late(self, text):
        """{(job, rank or node)} of an alert's expression with a short window."""
        found = self.server.query(text.replace("5m", self.WINDOW))
        return {(self.names[labels["job"]], labels.get("rank") or self.node(labels["instance"])) for labels, _ in found}

    def node(self, instance):
        return next(name.partition(".")[2] for name, address in self.targets.items() if address == instance)

    def check_every_query_has_data(self, seen):
        for (title, _), series in seen.items():
            self.assertTrue(series, title)
            numbers = {legend: value for legend, value in series.items() if value == value}
            without = {(title, legend.split()[0]) for legend in set(series) - set(numbers)}
            self.assertLessEqual(without, self.NAN)
            self.assertTrue(numbers, title)
            self.assertGreaterEqual(min(numbers.values()), 0, title)

    def check_who_is_slow(self, seen):
        for panel in ("Ranks that the others wait for", "Lateness of ranks"):
            lateness = {" ".join(legend.split()[:3]): value for legend, value in seen[panel, "A"].items()}
            self.assertEqual(len(lateness), 8)
            for job, straggler in (("frozen", 2), ("ordered", 1)):
                of_job = {legend: value for legend, value in lateness.items() if legend.startswith(job)}
                self.assertEqual(max(of_job, key=of_job.get), "%s rank %d" % (job, straggler), of_job)
                self.assertGreater(of_job["%s rank %d" % (job, straggler)], 0.4, of_job)
        nodes = {" ".join([legend.split()[0], self.node(legend.split()[1])]): value
                 for legend, value in seen["Nodes that the others wait for", "A"].items()}
        self.assertEqual({name for name, value in nodes.items() if value > 0.4}, {"frozen node1", "ordered node1"}, nodes)
        by_coordinators = seen["Lateness of nodes, by coordinators", "A"]
        self.assertGreater(by_coordinators["ordered node1"], 0.4)
        self.assertLess(by_coordinators["frozen node1"], 0.1)
        steps = seen["Steps per second", "A"]
        self.assertEqual(set(steps), {"frozen", "ordered", "gpu"})
        self.assertLess(steps["frozen"], 1 / self.FROZEN)
        self.assertLess(steps["ordered"], 1 / self.ORDERED)
        for job, elements in (("frozen", self.SMALL), ("ordered", self.LARGE)):
            of_step = 4 * (5 * elements + 1)
            self.assertAlmostEqual(seen["Result bytes", "A"][job] / of_step / steps[job], 1, delta=0.3)
            self.assertAlmostEqual(seen["Operations", "A"][job + " allreduce"] / 6 / steps[job], 1, delta=0.3)

    def check_state(self, seen):
        value = lambda title, letter="A": seen[title, letter]
        now = {"Daemons down": 0, "Coordinators that lead": 3, "Alerts": 0, "Errors": 0, "Late ranks": 0, "Jobs": 3,
               "Ranks": 8}
        self.assertEqual({title: value(title) for title in now}, {title: {title: n} for title, n in now.items()})
        self.assertEqual(value("Ranks of each job"), {"frozen": 4, "ordered": 2, "gpu": 2})
        self.assertEqual(value("Jobs without the coordinator"), {"frozen": 1})
        share = value("Share of operations that the coordinator orders")
        self.assertEqual((share["frozen"], share["gpu"]), (0, 0))
        self.assertGreater(share["ordered"], 0.8)
        self.assertGreater(value("Fusion")["ordered on nodes"], 1)
        self.assertEqual(sorted(value("Sessions").values()), [1, 2, 2])
        self.assertEqual(set(value("Versions").values()), {1})
        self.assertEqual(len(value("Versions")), len(self.targets))
        self.assertFalse([legend for key, series in seen.items() for legend in series
                          if key[0] in ("Errors on nodes", "Streams to the coordinator that were resumed")
                          and legend.split()[0] not in self.ids])
        (gpu,) = value("GPU memory shared with executors")
        self.assertRegex(gpu, "^gpu GPU-")
        for title in ("Operations on GPUs", "Bytes on GPUs", "Time of an operation on a GPU"):
            self.assertGreater(value(title)[gpu], 0, title)
        self.assertGreater(value("Where operations on CUDA tensors run")["gpu agent"], 0)

    def check_alerts(self):
        alerts = queries.of_alerts()
        state = self.server.rules()
        self.assertEqual({name: rule["health"] for name, rule in state.items()}, dict.fromkeys(alerts, "ok"))
        # In good health every rule is about series that are there, and none fires.
        for name, text in alerts.items():
            self.assertTrue(self.server.query(re.sub(r" (>|==) [0-9.]+(?= and |$)", "", text)), name)
            self.assertNotEqual(state[name]["state"], "firing")
        stragglers = {late for late in self.late(alerts["MaypoleRankLate"]) if late[0] != "gpu"}
        self.assertEqual(stragglers, {("frozen", "2"), ("ordered", "1")})
        self.assertEqual(self.late(alerts["MaypoleNodeLate"]), {("frozen", "node1"), ("ordered", "node1")})

    def test_every_query(self):
        began = time.monotonic()
        while True:  # other tests may keep the machine busy for a while
            seen = self.look()
            try:
                self.check_every_query_has_data(seen)
                self.check_state(seen)
                self.check_who_is_slow(seen)
                self.check_alerts()
                break
            except AssertionError:
                if time.monotonic() > began + 60:
                    raise
            time.sleep(2)
        chosen = self.look(job=self.ids["ordered"])
        self.assertEqual(set(chosen["Steps per second", "A"]), {"ordered"})
        node = self.targets["frozen.node1"].replace(".", r"\\.")
        chosen = self.look(job=self.ids["frozen"], node=node)
        self.assertEqual([legend.split()[:3] for legend in chosen["Time in waits, by rank", "A"]],
                         [["frozen", "rank", "2"], ["frozen", "rank", "3"]])
        # The others waited for it although their node was not chosen.
        self.assertGreater(chosen["Largest lateness", "A"]["Largest lateness"], 0.4)
        self.check_steps()

    def check_steps(self):
        """What the program has counted itself."""
        counted = 'maypole_steps_total{endpoint="%s.node0"}'
        before = {job: (self.server.value(counted % job), time.monotonic()) for job in ("frozen", "ordered")}
        time.sleep(4)
        for name, job in (("frozen", self.frozen), ("ordered", self.ordered)):
            steps, now = self.server.value(counted % name), time.monotonic()
            job.touch("end")
            job.check_ok(60)
            really = job.record(0)
            self.assertAlmostEqual(steps / really["steps"], 1, delta=0.2)
            rate = (steps - before[name][0]) / (now - before[name][1])
            self.assertAlmostEqual(rate / (really["steps"] / really["seconds"]), 1, delta=0.5)


if __name__ == "__main__":
    unittest.main()
