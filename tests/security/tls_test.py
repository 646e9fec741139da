"""TLS between the coordinator and the agents, with certificates as
deploy/make-certs.sh makes them: others can neither read the traffic nor connect,
and each misconfiguration gives one line that names it."""

import os
import shutil
import socket
import subprocess
import tempfile
import threading
import unittest

import cluster
import harness

MAKE_CERTS = os.path.join(harness.ROOT, "deploy/make-certs.sh")
SECRETS = [b"the.secret.job", b"gradient.of.plan.nine", b"the.job.token", b"ticket1."]
CLUSTER_SECRET = b"only those who know this may join"


class RecordingProxy:
    """An eavesdropper between agents and coordinator: records the traffic."""

    def __init__(self, to):
        host, port = to.rsplit(":", 1)
        self.to = (host, int(port))
        self.seen = b""
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.sockets = []
        self.lock = threading.Lock()
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
                data = source.recv(65536)
                with self.lock:
                    self.seen += data
                if not data:
                    target.shutdown(socket.SHUT_WR)
                    return
                target.sendall(data)
        except OSError:
            pass

    def close(self):
        for s in [self.listener] + self.sockets:
            s.close()


def make_certs(directory, *hosts):
    subprocess.run([MAKE_CERTS, directory, *hosts], check=True, capture_output=True, text=True,
                   env=harness.environment())
    return directory


def expired(directory, name):
    """A certificate for the key NAME.key, of the CA in the directory, that has expired."""
    config = os.path.join(directory, "ca.cnf")
    for file, text in (("index.txt", ""), ("serial", "1001\n"), ("ca.cnf", (
            "[ca]\ndefault_ca=d\n[d]\ndatabase={0}/index.txt\nserial={0}/serial\nnew_certs_dir={0}\n"
            "default_md=sha256\npolicy=p\nx509_extensions=e\nunique_subject=no\n[p]\ncommonName=supplied\n"
            "[e]\nextendedKeyUsage=serverAuth,clientAuth\nsubjectAltName=IP:127.0.0.1\n").format(directory))):
        with open(os.path.join(directory, file), "w") as f:
            f.write(text)
    csr, out = (os.path.join(directory, name + end) for end in (".csr", ".expired.pem"))
    for command in (["req", "-new", "-key", os.path.join(directory, name + ".key"), "-subj", "/CN=maypole-" + name,
                     "-out", csr],
                    ["ca", "-batch", "-notext", "-config", config, "-cert", os.path.join(directory, "ca.pem"),
                     "-keyfile", os.path.join(directory, "ca.key"), "-in", csr, "-out", out,
                     "-startdate", "20200101000000Z", "-enddate", "20200201000000Z"]):
        subprocess.run(["openssl"] + command, check=True, capture_output=True, text=True)
    return out


@unittest.skipIf(shutil.which("openssl") is None, "openssl is not installed")
class TlsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.certs = tempfile.mkdtemp(prefix="mpt", dir="/tmp")
        cls.addClassCleanup(shutil.rmtree, cls.certs, True)
        cls.ours = make_certs(os.path.join(cls.certs, "our s"), "127.0.0.1", "::1", "localhost")
        cls.theirs = make_certs(os.path.join(cls.certs, "theirs"), "127.0.0.1")
        cls.elsewhere = os.path.join(cls.certs, "elsewhere")
        shutil.copytree(cls.ours, cls.elsewhere)
        make_certs(cls.elsewhere, "head.example", "10.9.8.7")  # of the same CA

    @staticmethod
    def flags(directory, name, cert=None):
        return ["--tls_ca=" + os.path.join(directory, "ca.pem"),
                "--tls_cert=" + (cert or os.path.join(directory, name + ".pem")),
                "--tls_key=" + os.path.join(directory, name + ".key")]

    def run_job(self, tls):
        """Runs a job on two agents behind the proxy; returns the recorded traffic."""
        with cluster.Cluster() as c:
            secret = "--secret_file=" + c.secret()
            proxy = RecordingProxy(c.coordinator(secret, *(self.flags(self.ours, "coordinator") if tls else [])))
            self.addCleanup(proxy.close)
            node = self.flags(self.ours, "node") if tls else []
            agents = [c.agent(n, proxy.address, secret, *node) for n in (0, 1)]
            c.check_ok(c.ranks(agents, job="the.secret.job", token="the.job.token"))
            for r in (0, 1):
                self.assertEqual(c.record(r)["sum"], 3.0)
            with proxy.lock:
                return proxy.seen

    def test_nobody_reads_along(self):
        plain = self.run_job(tls=False)
        for word in SECRETS:  # else the test below could not fail
            self.assertIn(word, plain)
        self.assertNotIn(CLUSTER_SECRET, plain)  # executors do not have it
        sealed = self.run_job(tls=True)
        self.assertGreater(len(sealed), 2000)
        for word in SECRETS:
            self.assertNotIn(word, sealed)

    def refusal(self, coordinator, agent, address=None):
        """The rank's error when agent and coordinator do not match."""
        with cluster.Cluster() as c:
            listens = c.coordinator(*coordinator)
            socket_path = c.agent(0, address or listens, "--resume_timeout=1s", *agent)
            # Two nodes, or there would be no need of the coordinator's answer.
            process = c.rank(0, 2, socket_path, node=0, nodes=2)
            c.check_ok([process])
            text = c.record(0)["error"]
        self.assertEqual(len(text.splitlines()), 1, text)
        self.assertIn("cannot reach the coordinator at " + (address or listens), text)
        return text

    def test_a_coordinator_of_another_ca(self):
        self.assertIn("its certificate was not issued by the CA of --tls_ca",
                      self.refusal(self.flags(self.theirs, "coordinator"), self.flags(self.ours, "node")))

    def test_an_agent_of_another_ca(self):
        mixed = ["--tls_ca=" + os.path.join(self.certs, "both.pem")] + self.flags(self.theirs, "node")[1:]
        with open(os.path.join(self.certs, "both.pem"), "w") as both:
            for directory in (self.ours, self.theirs):
                with open(os.path.join(directory, "ca.pem")) as ca:
                    both.write(ca.read())
        self.assertRegex(self.refusal(self.flags(self.ours, "coordinator"), mixed),
                         r"it does not accept this side's certificate \(.*\); --tls_cert must be of the same CA")

    def test_a_coordinator_with_another_name(self):
        text = self.refusal(self.flags(self.elsewhere, "coordinator"), self.flags(self.ours, "node"))
        self.assertIn("its certificate is for head.example, 10.9.8.7, not for '127.0.0.1'", text)
        self.assertIn("--tls_server_name", text)

    def test_another_name_that_is_given(self):
        with cluster.Cluster() as c:
            address = c.coordinator(*self.flags(self.elsewhere, "coordinator"))
            agents = [c.agent(n, address, "--tls_server_name=head.example", *self.flags(self.ours, "node"))
                      for n in (0, 1)]
            c.check_ok(c.ranks(agents))
            self.assertEqual(c.record(0)["sum"], 3.0)

    def test_plaintext_against_tls(self):
        self.assertIn("it speaks TLS: give --tls_ca, --tls_cert and --tls_key",
                      self.refusal(self.flags(self.ours, "coordinator"), []))

    def test_tls_against_plaintext(self):
        self.assertIn("it does not speak TLS: start it with --tls_ca, --tls_cert and --tls_key, or leave them out here",
                      self.refusal([], self.flags(self.ours, "node")))

    def one_line(self, program, flags, *parts):
        result = subprocess.run([os.path.join(harness.ROOT, program)] + flags, capture_output=True, text=True, timeout=30)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        for part in parts:
            self.assertIn(part, result.stderr)

    def test_files_that_do_not_fit_are_one_line_at_the_start(self):
        ca, cert, key = self.flags(self.ours, "node")
        other = self.flags(self.theirs, "node")
        open_key = os.path.join(self.certs, "open.key")
        shutil.copy(os.path.join(self.ours, "node.key"), open_key)
        os.chmod(open_key, 0o640)
        for program, needed in (("worker/maypole-worker", ["--coordinator=127.0.0.1:1"]),
                                ("coordinator/maypole-coordinator", [])):
            def check(flags, *parts):
                self.one_line(program, needed + flags, *parts)
            check([ca, cert], "--tls_key is missing", "--tls_ca, --tls_cert and --tls_key")
            check([ca, cert, "--tls_key=" + open_key], "others than its owner may use it; chmod 600 " + open_key)
            check([ca, cert, other[2]], "is not the key of the certificate in")
            check([ca] + other[1:], "the certificate was not issued by the CA of --tls_ca")
            check([ca, cert, "--tls_key=/nonexistent"], "--tls_key=/nonexistent: No such file")
            check([ca, "--tls_cert=" + open_key, key], "must contain a certificate (PEM)")
            check([ca, "--tls_cert=" + expired(self.ours, "node"), key], "the certificate has expired (on 2020-02-01")

    def test_a_certificate_that_expires_while_the_agent_runs(self):
        # (A program with an expired certificate does not start, so a proxy answers in
        # the coordinator's place with openssl's own server.)
        cert = expired(self.ours, "coordinator")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with cluster.Cluster() as c:
            c.start("server", ["openssl", "s_server", "-accept", "127.0.0.1:%d" % port, "-cert", cert, "-key",
                               os.path.join(self.ours, "coordinator.key"), "-quiet", "-alpn", "h2"])
            address = "127.0.0.1:%d" % port

            def listens():
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    return True
                except OSError:
                    return False

            harness.wait_until(listens, 10, "openssl s_server")
            agent = c.agent(0, address, "--resume_timeout=1s", *self.flags(self.ours, "node"))
            c.check_ok([c.rank(0, 2, agent, node=0, nodes=2)])
            text = c.record(0)["error"]
        self.assertEqual(len(text.splitlines()), 1, text)
        self.assertIn("its certificate has expired (on 2020-02-01 00:00:00 UTC)", text)


if __name__ == "__main__":
    unittest.main()
