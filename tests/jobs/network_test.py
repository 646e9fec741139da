"""Two nodes connected only by a wire: the gradients really cross it."""

import json
import os
import re
import shutil
import tempfile
import unittest

import cluster
import harness
import namespaces

STEPS = 20
REASON = namespaces.available()


@unittest.skipIf(REASON, REASON)
class NetworkTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="mpn", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.dir, True)
        with open(self.path("secret"), "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            f.write("only those who know this may join\n")

    def path(self, name):
        return os.path.join(self.dir, name)

    def start_node(self, net, node, coordinator):
        socket = self.path("agent%d" % node)
        spec = {
            "socket": socket,
            "agent": [os.path.join(harness.ROOT, "worker/maypole-worker"), "--socket=" + socket,
                      "--coordinator=" + coordinator, "--node=n%d" % node, "--metrics=",
                      "--secret_file=" + self.path("secret")],
            "ranks": [],
        }
        for local in range(2):
            spec["ranks"].append({
                "argv": [harness.PYTHON, os.path.join(harness.ROOT, "tests/programs/train.py"), str(STEPS)],
                "env": {"MAYPOLE_RANK": str(2 * node + local), "MAYPOLE_SIZE": "4",
                        "MAYPOLE_LOCAL_RANK": str(local), "MAYPOLE_LOCAL_SIZE": "2",
                        "MAYPOLE_CROSS_RANK": str(node), "MAYPOLE_CROSS_SIZE": "2",
                        "MAYPOLE_JOB": "wire", "MAYPOLE_TOKEN": "t", "MAYPOLE_AGENT": socket,
                        "MAYPOLE_TEST_DIR": self.dir},
            })
        with open(self.path("node%d.json" % node), "w") as f:
            json.dump(spec, f)
        program = os.path.join(harness.ROOT, "tests/programs/node.py")
        return net.run(node, [harness.PYTHON, program, f.name], isolated=node == 1,
                       env=harness.environment())

    def test_training_across_a_wire(self):
        with namespaces.Namespaces() as net:
            address = net.ADDRESSES[0] + ":47113"
            coordinator = net.run(
                0, [os.path.join(harness.ROOT, "coordinator/maypole-coordinator"),
                    "--listen=" + address, "--metrics=", "--secret_file=" + self.path("secret")], env=harness.environment())
            before = net.crossed()
            nodes = [self.start_node(net, n, address) for n in (0, 1)]
            for node in nodes:
                self.assertEqual(node.wait(timeout=90), 0)
            after = net.crossed()
            coordinator.terminate()
            self.assertEqual(coordinator.wait(timeout=10), 0)
        records = []
        for r in range(4):
            with open(self.path("rank.%d.json" % r)) as f:
                records.append(json.load(f))
        self.assertEqual({r["digest"] for r in records}, {records[0]["digest"]})
        payload = records[0]["payload"] * STEPS
        for name, a, b in zip(("sent", "received"), after, before):
            crossed = a - b
            # A ring over two nodes sends each byte of the gradients once in
            # each direction; headers and negotiation come on top.
            self.assertGreaterEqual(crossed, payload, name)
            self.assertLess(crossed, 1.5 * payload + 2e6, name + ": more than a ring needs")
            print("%s %d bytes for gradients of %d" % (name, crossed, payload))


@unittest.skipIf(REASON, REASON)
class TwoNetworksTest(unittest.TestCase):
    """Two wires of 1 Gbit/s, which maypole-worker --network names."""

    MIB = 1 << 20

    def run_over(self, networks):
        """The seconds of an allreduce of 16 MiB over these of the wires (0 and 1), and what crossed each."""
        with namespaces.Namespaces(rate="1gbit", wires=2) as net, cluster.Cluster() as c:
            inside = [["ip", "netns", "exec", name] for name in net.names]
            secret = "--secret_file=" + c.secret()
            coordinator = c.coordinator("--listen=%s:0" % net.ADDRESSES[0], secret, prefix=inside[0])
            # An address, or the name of an interface.
            names = [[net.ADDRESSES[node], net.data_links[node]] for node in (0, 1)]
            agents = [c.agent(node, coordinator, secret, "--network=" + ",".join(names[node][w] for w in networks),
                              prefix=inside[node]) for node in (0, 1)]
            before = [net.crossed(data) for data in (False, True)]
            c.check_ok([c.rank(r, 2, agents[r], node=r, nodes=2, program="two_networks.py",
                               args=[4 * self.MIB, 5], prefix=inside[r]) for r in (0, 1)])
            crossed = [[b - a for a, b in zip(was, net.crossed(data))] for was, data in zip(before, (False, True))]
            return max(c.record(r)["seconds"] for r in (0, 1)), crossed

    def test_both_carry_half(self):
        one, over_one = self.run_over([1])
        self.assertLess(max(over_one[0]), 4 * self.MIB)
        both, over_both = self.run_over([0, 1])
        payload = 5 * 16 * self.MIB
        for direction in (0, 1):
            self.assertGreater(over_one[1][direction], payload)
            for wire in (0, 1):
                self.assertGreater(over_both[wire][direction], 0.45 * payload)
                self.assertLess(over_both[wire][direction], 0.6 * payload)
        print("16 MiB over one network %.0f ms, over two %.0f ms" % (1e3 * one, 1e3 * both))
        self.assertGreater(one / both, 1.5)  # it is 1.9 on an idle machine

    def lose(self, order, *flags, before=False):
        """A job over both networks in this order, of which the second wire is lost, or has been before the start; what its
        ranks and agents say.
        """
        with namespaces.Namespaces(wires=2) as net, cluster.Cluster() as c:
            inside = [["ip", "netns", "exec", name] for name in net.names]
            secret = "--secret_file=" + c.secret()
            coordinator = c.coordinator("--listen=%s:0" % net.ADDRESSES[0], secret, prefix=inside[0])
            names = [[net.ADDRESSES[node], net.DATA[node]] for node in (0, 1)]
            agents = [c.agent(node, coordinator, secret, "--network=" + ",".join(names[node][w] for w in order),
                              "--network_timeout=2s", *flags, prefix=inside[node]) for node in (0, 1)]
            if before:
                net.cut_data()
            ranks = [c.rank(r, 2, agents[r], node=r, nodes=2, program="lost_network.py", prefix=inside[r])
                     for r in (0, 1)]
            harness.wait_until(lambda: os.path.exists(c.path("ready")), 60, "the first steps")
            if not before:
                net.cut_data()
            open(c.path("cut"), "w").close()
            c.check_ok(ranks)
            records = [c.record(r) for r in (0, 1)]
            return records, [c.log("agent%d" % node) for node in (0, 1)]

    def check_lost(self, order, *flags, **kwargs):
        records, logs = self.lose(order, *flags, **kwargs)
        print("networks %s%s: the slowest step took %.1f s, then one %.1f ms (before %.1f ms)" % (
            order, " ".join(flags), records[0]["slowest"], 1e3 * records[0]["after"], 1e3 * records[0]["before"]))
        for node, log in enumerate(logs):
            moved = [line for line in log.splitlines() if "event=connection_moved" in line]
            # One for data in each direction; and one for messages, if they used that network.
            self.assertEqual(len(moved), 3 if order[0] == 1 else 2, log)
            for line in moved:
                self.assertIn("address=%s" % namespaces.Namespaces.ADDRESSES[node], line)
                self.assertIn("node n%d " % (1 - node), line)

    def test_one_that_is_lost_costs_speed_and_not_the_job(self):
        for order in ((1, 0), (0, 1)):
            with self.subTest(order=order):
                self.check_lost(order)

    def test_a_job_starts_without_one_that_is_lost(self):
        self.check_lost((1, 0), before=True)

    def test_one_that_is_lost_of_encrypted_ones(self):
        self.check_lost((1, 0), "--network_encryption=on")

    def test_one_that_comes_back_is_used_again(self):
        with namespaces.Namespaces(wires=2) as net, cluster.Cluster() as c:
            inside = [["ip", "netns", "exec", name] for name in net.names]
            secret = "--secret_file=" + c.secret()
            coordinator = c.coordinator("--listen=%s:0" % net.ADDRESSES[0], secret, prefix=inside[0])
            agents = [c.agent(node, coordinator, secret, "--network=%s,%s" % (net.DATA[node], net.ADDRESSES[node]),
                              "--network_timeout=1s", "--network_encryption=on", prefix=inside[node])
                      for node in (0, 1)]
            ranks = [c.rank(r, 2, agents[r], node=r, nodes=2, program="lost_network.py", prefix=inside[r])
                     for r in (0, 1)]

            def lines(event):
                return [line for node in (0, 1) for line in c.log("agent%d" % node).splitlines() if event in line]

            harness.wait_until(lambda: os.path.exists(c.path("ready")), 60, "the first steps")
            net.cut_data()
            # Of each node two connections for data and one for messages.
            harness.wait_until(lambda: len(lines("event=connection_moved")) == 6, 30, "the connections to move")
            net.mend_data()
            harness.wait_until(lambda: len(lines("event=connection_back")) == 6, 30, "the connections to come back")
            for node in (0, 1):
                self.assertIn("address=%s" % net.DATA[node], "\n".join(lines("event=connection_back")))
            before = net.crossed(data=True)
            open(c.path("cut"), "w").close()
            c.check_ok(ranks)  # the sums of all steps are right
            for was, now in zip(before, net.crossed(data=True)):
                self.assertGreater(now - was, 30 * 4 * self.MIB / 2.5)  # half of what the last steps sum


class Switch(namespaces.Namespaces):
    """Four nodes on a switch, each with a wire of 1 Gbit/s; that of node 2 has 100 Mbit/s."""

    ADDRESSES = tuple("10.213.77.%d" % (1 + n) for n in range(4))
    RATES = ("1gbit", "1gbit", "100mbit", "1gbit")

    def __init__(self):
        super().__init__()
        self.names = ["mp%d%s" % (os.getpid(), side) for side in "abcds"]

    def _make(self):
        switch = self.names[-1]
        for name in self.names:
            self.ip("netns", "add", name)
            self.ip("-n", name, "link", "set", "lo", "up")
        self.ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        self.ip("-n", switch, "link", "set", "bridge", "up")
        for name, address, rate, port in zip(self.names, self.ADDRESSES, self.RATES, ("p0", "p1", "p2", "p3")):
            self.ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", switch)
            self.ip("-n", name, "addr", "add", address + "/24", "dev", "eth0")
            self.ip("-n", switch, "link", "set", port, "master", "bridge")
            for at, link in ((name, "eth0"), (switch, port)):
                self.ip("-n", at, "link", "set", link, "up")
                self.limit(at, link, rate, "32kb")


@unittest.skipIf(REASON, REASON)
class SlowWireTest(unittest.TestCase):
    def test_its_node_is_named(self):
        with Switch() as net, cluster.Cluster() as c:
            inside = [["ip", "netns", "exec", name] for name in net.names]
            secret = "--secret_file=" + c.secret()
            coordinator = c.coordinator("--listen=%s:0" % net.ADDRESSES[0], secret, prefix=inside[0])
            agents = [c.agent(node, coordinator, secret, prefix=inside[node]) for node in range(4)]
            c.check_ok([c.rank(r, 4, agents[r], node=r, nodes=4, program="where.py", prefix=inside[r]) for r in range(4)])
            for node in range(4):
                found = re.findall(r"event=slow_wire job=\S+ epoch=1 node=\"node n(\d) [^\"]*\" mbit_s=(\d+)",
                                   c.log("agent%d" % node))
                self.assertEqual([name for name, _ in found], ["2"] if node in (0, 2) else [], (node, found))
                for _, speed in found:
                    self.assertLess(abs(int(speed) - 100), 20)


if __name__ == "__main__":
    unittest.main()
