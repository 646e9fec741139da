"""Machines with IPv6 addresses only, and a head whose own name resolves to
127.0.1.1 there: the executors still find each other."""

import shutil
import subprocess
import unittest

import cluster
import harness
import machines

REASON = machines.available()
MAKE_CERTS = harness.ROOT + "/deploy/make-certs.sh"


@unittest.skipIf(REASON, REASON)
class AddressesTest(unittest.TestCase):
    def run_job(self, both, listen, calls, *flags, node_flags=()):
        """Coordinator and agent 0 on the first machine, agent 1 on the second,
        which call it as `calls` says; what the agents have logged."""
        with cluster.Cluster(within=both.dir) as c:
            secret = "--secret_file=" + c.secret()
            inside = [both[n].command([]) for n in (0, 1)]
            address = c.coordinator("--listen=" + listen, secret, *flags, prefix=inside[0])
            port = address.rsplit(":", 1)[1]
            agents = [c.agent(n, calls[n] + ":" + port, secret, *node_flags, prefix=inside[n]) for n in (0, 1)]
            ranks = [c.rank(r, 2, agents[r], node=r, nodes=2, prefix=inside[r]) for r in (0, 1)]
            c.check_ok(ranks)
            for r in (0, 1):
                self.assertEqual(c.record(r).get("sum"), 3.0, c.record(r))

    def test_ipv6_only(self):
        v6 = [[a] for a in machines.V6]
        head = machines.V6[0].split("/")[0]
        with machines.Machines(["head", "n1"], addresses=v6) as both:
            addresses = both[0].run(["ip", "-4", "addr", "show", "dev", "eth0"]).stdout
            self.assertNotIn("inet ", addresses)
            self.run_job(both, "[::]:0", ["[%s]" % head] * 2)
            # By name; loopback on the head itself.
            self.run_job(both, "[::]:0", ["[::1]", "head"])
            self.run_job(both, "[%s]:0" % head, ["head", "head"])

    @unittest.skipIf(shutil.which("openssl") is None, "openssl is not installed")
    def test_ipv6_only_with_tls(self):
        head = machines.V6[0].split("/")[0]
        with machines.Machines(["head", "n1"], addresses=[[a] for a in machines.V6]) as both:
            subprocess.run([MAKE_CERTS, both.dir + "/certs", "head", head], check=True, capture_output=True)

            def tls(name):
                at = both.dir + "/certs/"
                return ["--tls_ca=%sca.pem" % at, "--tls_cert=%s%s.pem" % (at, name), "--tls_key=%s%s.key" % (at, name)]

            self.run_job(both, "[::]:0", ["[%s]" % head, "head"], *tls("coordinator"), node_flags=tls("node"))

    def test_a_network_address_that_is_given(self):
        v6 = [a.split("/")[0] for a in machines.V6]
        with machines.Machines(["head", "n1"], addresses=[[a] for a in machines.V6]) as both:
            with cluster.Cluster(within=both.dir) as c:
                inside = [both[n].command([]) for n in (0, 1)]
                address = c.coordinator("--listen=[::]:0", "--secret_file=" + c.secret(), prefix=inside[0])
                calls = "[%s]:%s" % (v6[0], address.rsplit(":", 1)[1])
                agents = [c.agent(n, calls, "--secret_file=" + c.secret(), "--network=" + network, prefix=inside[n])
                          for n, network in ((0, v6[0]), (1, "[%s]" % v6[1]))]
                c.check_ok([c.rank(r, 2, agents[r], node=r, nodes=2, prefix=inside[r]) for r in (0, 1)])
                self.assertEqual([c.record(r).get("sum") for r in (0, 1)], [3.0, 3.0], c.record(0))

    def test_a_head_whose_name_is_loopback_to_itself(self):
        head, other = (a.split("/")[0] for a in machines.V4)
        own = "127.0.0.1 localhost\n127.0.1.1 head\n%s n1\n" % other
        others = "127.0.0.1 localhost\n127.0.1.1 n1\n%s head\n" % head
        with machines.Machines(["head", "n1"], hosts=[own, others]) as both:
            self.run_job(both, "0.0.0.0:0", ["head", "head"])
            self.run_job(both, "0.0.0.0:0", ["127.0.0.1", "head"])


if __name__ == "__main__":
    unittest.main()
