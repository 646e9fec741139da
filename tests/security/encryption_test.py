"""Encryption between executors, on a wire of its own (two network namespaces):
what an eavesdropper finds, which nodes are refused, and the messages that say so."""

import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import unittest

import cluster
import harness
import namespaces
from tls_test import make_certs

NAME = b"gradient.of.plan.nine"  # as in recognisable.py
LARGE = b"the weights of the model; "
SMALL = b"a small input..."
HEAD = namespaces.Namespaces.ADDRESSES[0]


class ChangingProxy:
    """Somebody between agents and coordinator, who takes the encryption out of the executors' offers."""

    # Connections and mode, secret, port, address (worker/backend/handshake_io.h).
    OFFER = re.compile(rb"\x13(.{34}127\.0\.0\.1)", re.DOTALL)

    def __init__(self, to):
        host, port = to.rsplit(":", 1)
        self.to = (host, int(port))
        self.changed = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.sockets = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
                server = socket.create_connection(self.to)
            except OSError:
                return
            self.sockets += [client, server]
            for a, b in ((client, server), (server, client)):
                threading.Thread(target=self._copy, args=(a, b), daemon=True).start()

    def _copy(self, source, target):
        try:
            while True:
                data, count = self.OFFER.subn(lambda offer: b"\x03" + offer[1], source.recv(1 << 20))
                self.changed += count
                if not data:
                    target.shutdown(socket.SHUT_WR)
                    return
                target.sendall(data)
        except OSError:
            pass

    def close(self):
        for s in [self.listener] + self.sockets:
            s.close()


class Wire:
    """Two nodes, a coordinator on the first one, and somebody who reads along."""

    def __init__(self, test, certs=None):
        self.net = test.enterContext(namespaces.Namespaces())
        self.cluster = test.enterContext(cluster.Cluster())
        self.certs = certs
        self.secret = "--secret_file=" + self.cluster.secret()
        self.address = self.cluster.coordinator("--listen=%s:0" % HEAD, self.secret, *self.tls("coordinator"),
                                                prefix=self.inside(0))

    def tls(self, name):
        if self.certs is None:
            return []
        return ["--tls_%s=%s" % (kind, os.path.join(self.certs, file))
                for kind, file in (("ca", "ca.pem"), ("cert", name + ".pem"), ("key", name + ".key"))]

    def inside(self, node):
        return ["ip", "netns", "exec", self.net.names[node]]

    def agent(self, node, *flags):
        return self.cluster.agent(node, self.address, self.secret, *self.tls("node"), *flags, prefix=self.inside(node))

    def run(self, agents, env=None):
        """Runs a job; returns what has crossed the wire meanwhile."""
        tap, path = "tap", self.cluster.path("wire")
        program = os.path.join(harness.ROOT, "tests/programs/wiretap.py")
        listener = self.cluster.start(tap, self.inside(0) + [harness.PYTHON, program, self.net.links[0], path])
        harness.wait_until(lambda: "listening" in self.cluster.log(tap), 30, "the wiretap")
        ranks = [self.cluster.rank(r, 2, agents[r], node=r, nodes=2, program="recognisable.py", env=env,
                                   prefix=self.inside(r)) for r in (0, 1)]
        self.cluster.check_ok(ranks)
        listener.terminate()
        listener.wait(timeout=30)
        with open(path, "rb") as f:
            return f.read()

    def log(self):
        return "".join(self.cluster.log("agent%d" % n) for n in (0, 1))


@unittest.skipIf(namespaces.available(), namespaces.available())
class EncryptionTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.certs = tempfile.mkdtemp(prefix="mpe", dir="/tmp")
        cls.addClassCleanup(shutil.rmtree, cls.certs, True)
        make_certs(cls.certs, HEAD)

    def job(self, wire, *flags, env=None):
        seen = wire.run([wire.agent(n, *flags) for n in (0, 1)], env)
        for r in (0, 1):
            self.assertEqual(wire.cluster.record(r), {"got": [True, True]})
        self.assertGreater(len(seen), 20 * 40000 * len(LARGE))  # it has all crossed this wire
        return seen

    def test_in_the_clear_all_of_it_can_be_read(self):  # else the others could not fail
        wire = Wire(self)
        seen = self.job(wire)
        for word in (NAME, LARGE, SMALL):
            self.assertIn(word, seen)
        self.assertIn("event=network_encryption", wire.log())
        self.assertIn("mode=off encrypted_nodes=0 clear_nodes=1 suite=none", wire.log())

    def test_required_encryption_shows_neither_data_nor_names(self):
        wire = Wire(self, self.certs)
        seen = self.job(wire, "--network_encryption=require")
        for word in (NAME, LARGE, SMALL, b"small"):
            self.assertNotIn(word, seen)
        self.assertEqual(len(re.findall(r"mode=require encrypted_nodes=1 clear_nodes=0 suite=TLS_\w+", wire.log())), 2,
                         wire.log())

    def test_without_tls_to_the_coordinator_only_data_is_hidden(self):
        seen = self.job(Wire(self), "--network_encryption=on")
        self.assertIn(NAME, seen)
        for word in (LARGE, SMALL):
            self.assertNotIn(word, seen)

    def test_a_job_may_ask_for_it(self):
        wire = Wire(self, self.certs)
        seen = self.job(wire, env={"MAYPOLE_NETWORK_ENCRYPTION": "require"})
        for word in (NAME, LARGE, SMALL):
            self.assertNotIn(word, seen)
        self.assertIn("mode=require encrypted_nodes=1", wire.log())

    def errors(self, wire, agents, env=None):
        """The errors of both ranks of a job that cannot start."""
        seen = wire.run(agents, env)
        for word in (LARGE, SMALL):
            self.assertNotIn(word, seen)
        return [wire.cluster.record(r)["error"] for r in (0, 1)]

    def test_a_node_that_does_not_encrypt_is_named(self):
        wire = Wire(self, self.certs)
        errors = self.errors(wire, [wire.agent(0, "--network_encryption=require"), wire.agent(1)])
        for text in errors:
            self.assertRegex(text, r"cannot connect to node n1 \(host .*\): it does not encrypt, which this node "
                                   r"requires|cannot connect to node n0 \(host .*\): it requires encryption, and this "
                                   r"node does not encrypt")

    def test_required_encryption_needs_a_coordinator_with_tls(self):
        wire = Wire(self)
        with self.assertRaisesRegex(AssertionError, "required network encryption needs a coordinator with TLS"):
            wire.agent(0, "--network_encryption=require")
        errors = self.errors(wire, [wire.agent(n) for n in (0, 1)], env={"MAYPOLE_NETWORK_ENCRYPTION": "require"})
        for text in errors:
            self.assertIn("required network encryption needs a coordinator with TLS", text)
            self.assertIn(wire.address, text)

    def test_a_mode_that_there_is_not(self):
        wire = Wire(self)
        with self.assertRaisesRegex(AssertionError, "--network_encryption='yes': expected off, on .* or require"):
            wire.agent(0, "--network_encryption=yes")
        errors = self.errors(wire, [wire.agent(n) for n in (0, 1)], env={"MAYPOLE_NETWORK_ENCRYPTION": "yes"})
        for text in errors:
            self.assertIn("MAYPOLE_NETWORK_ENCRYPTION='yes': expected off, on", text)


class OneMachineTest(unittest.TestCase):
    """Two nodes on loopback; there is no wire, and so no need of root."""

    def test_maypolerun_encrypts(self):
        with tempfile.TemporaryDirectory(prefix="mpe", dir="/tmp") as directory:
            program = os.path.join(harness.ROOT, "tests/programs/recognisable.py")
            command = [os.path.join(harness.ROOT, "client/launcher/maypolerun"), "-np", "2", "--nodes", "2", "--encrypt",
                       "--verbose", harness.PYTHON, program]
            result = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=directory,
                                    env=harness.environment({"MAYPOLE_TEST_DIR": directory}))
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(len(re.findall("mode=require encrypted_nodes=1 clear_nodes=0", result.stderr)), 2,
                             result.stderr)

    def test_changed_offers_are_refused_and_named(self):
        with cluster.Cluster() as c:
            secret = "--secret_file=" + c.secret()
            proxy = ChangingProxy(c.coordinator(secret))
            self.addCleanup(proxy.close)
            flags = [secret, "--network_encryption=on"]
            agents = [c.agent(n, proxy.address, *flags) for n in (0, 1)]
            c.check_ok(c.ranks(agents, program="recognisable.py"))
            self.assertGreater(proxy.changed, 0)
            for r in (0, 1):
                self.assertIn("what one of the two nodes says about encryption was changed on its way through the "
                              "coordinator", c.record(r)["error"])


if __name__ == "__main__":
    unittest.main()
