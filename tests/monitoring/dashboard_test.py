"""The dashboard, as a browser sees it: links, sessions and the stream, of a real coordinator with a real job."""

import collections
import contextlib
import http.client
import json
import os
import select
import socket
import ssl
import subprocess
import tempfile
import time
import unittest
import urllib.parse

import harness
import webdriver

CTL = os.path.join(harness.ROOT, "client/ctl/maypolectl")
COORDINATOR = os.path.join(harness.ROOT, "coordinator/maypole-coordinator")
MAKE_CERTS = os.path.join(harness.ROOT, "deploy/make-certs.sh")
WATCHERS = 16
STRANGERS = 64
# Shows a job of 1,024 nodes with 8 ranks each, until the next look; the milliseconds that it takes, and what is there.
LARGE = """
  const job = structuredClone(last.jobs[0]);
  job.job = "large";
  job.nodes = [...Array(1024).keys()].map((n) => ({node: "node" + n, host: "h", connected: true, sent: 0, received: 0,
    gpus: [...Array(8).keys()].map((i) => ["GPU-" + n + "-" + i, 3e10, 8e10, n == 77 ? i : 90]),
    ranks: [...Array(8).keys()].map((i) => [8 * n + i, 0, n == 77 ? 90 : 3, 50, 1])}));
  const data = {...last, jobs: [job], events: []};
  remember(job, Date.now());
  const begin = performance.now();
  show(data);
  document.body.offsetHeight;
  const took = performance.now() - begin;
  return [took, document.querySelectorAll("#grid i").length, [...document.querySelectorAll("#gpus tbody tr")].map((r) => r.textContent)];
"""


class CoordinatorTest(unittest.TestCase):
    flags = ["--dashboard=127.0.0.1:0"]

    def setUp(self):
        self.dir = tempfile.TemporaryDirectory(prefix="mp", dir="/tmp")
        self.addCleanup(self.dir.cleanup)
        self.secret = os.path.join(self.dir.name, "secret")
        with open(os.open(self.secret, os.O_CREAT | os.O_WRONLY, 0o600), "w") as f:
            f.write("open-sesame\n")
        read, write = os.pipe()
        self.coordinator = subprocess.Popen(
            [COORDINATOR, "--secret_file=" + self.secret, "--announce_fd=%d" % write, "--log_level=warning"] + self.flags,
            pass_fds=[write], env=harness.environment())
        self.addCleanup(self.end)
        os.close(write)
        with os.fdopen(read) as announced:
            self.announced = dict(word.split("=", 1) for word in announced.readline().split())

    def end(self):
        if self.coordinator.poll() is None:
            self.coordinator.terminate()
        self.assertEqual(self.coordinator.wait(20), 0)

    def ctl(self, *args):
        return subprocess.run([CTL, "--coordinator", self.announced["listen"], "--secret_file", self.secret, *args],
                              env=harness.environment(), capture_output=True, text=True, timeout=30)

    def get(self, path, cookie=None, method="GET", headers=()):
        host, port = self.announced["dashboard"].rsplit(":", 1)
        connection = http.client.HTTPConnection(host, int(port), timeout=20)
        self.addCleanup(connection.close)
        connection.request(method, path, headers=dict(headers, **({"Cookie": cookie} if cookie else {})))
        reply = connection.getresponse()
        reply.connection = connection
        return reply


class DashboardTest(CoordinatorTest):
    def link(self, *args):
        said = self.ctl("dashboard", *args)
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertTrue(said.stdout.startswith("http://%s/login?token=" % self.announced["dashboard"]), said.stdout)
        return urllib.parse.urlsplit(said.stdout.strip())

    def session(self, *args):
        link = self.link(*args)
        reply = self.get(link.path + "?" + link.query)
        self.assertEqual(reply.status, 303)
        self.assertEqual(reply.headers["Location"], "/")
        cookie = reply.headers["Set-Cookie"]
        self.assertIn("HttpOnly; SameSite=Strict", cookie)
        return cookie.split(";")[0]

    def data(self, stream):
        """The next event of a stream."""
        while True:
            line = stream.readline()
            self.assertTrue(line, "the stream has ended")
            if line.startswith(b"data: "):
                return json.loads(line[len(b"data: "):])

    def job(self):
        job = harness.Job(np=4, nodes=2, program="straggler.py", args=[2, 0.05],
                          launcher_args=["--coordinator", self.announced["listen"], "--secret-file", self.secret])
        self.addCleanup(job.stop)
        for r in range(4):
            job.await_file("running.%d" % r, 120)
        return job

    def test_a_link_is_good_for_one_browser(self):
        for path in ("/", "/app.js", "/stream", "/nothing", "/login", "/login?token=", "/login?token=" + 32 * "0"):
            reply = self.get(path, cookie="maypole_dashboard=" + 32 * "0")
            self.assertEqual(reply.status, 401, path)
            self.assertIn("maypolectl dashboard", reply.read().decode())
        link = self.link()
        reply = self.get(link.path + "?" + link.query)
        self.assertEqual(reply.status, 303)
        cookie = reply.headers["Set-Cookie"].split(";")[0]
        self.assertEqual(self.get(link.path + "?" + link.query).status, 401)
        # The same browser may open it again.
        self.assertEqual(self.get(link.path + "?" + link.query, cookie).status, 303)
        for path, kind, words in (("/", "text/html", b"<title>Maypole</title>"), ("/app.js", "text/javascript", b"EventSource"),
                                  ("/style.css", "text/css", b"prefers-color-scheme: dark"),
                                  ("/chart.js", "text/javascript", b"Chart.js v3")):
            reply = self.get(path, "other=1; " + cookie)
            self.assertEqual(reply.status, 200, path)
            self.assertTrue(reply.headers["Content-Type"].startswith(kind))
            self.assertIn("default-src 'self'", reply.headers["Content-Security-Policy"])
            self.assertIn(words, reply.read())
        self.assertEqual(self.get("/nothing", cookie).status, 404)
        for path, method in (("/stream", "POST"), ("/login", "POST"), ("/timeline", "GET")):
            self.assertEqual(self.get(path, cookie, method=method).status, 405, path)

    def test_the_stream_names_the_straggler(self):
        job = self.job()
        stream = self.get("/stream", self.session())
        self.assertEqual(stream.status, 200)
        self.assertEqual(stream.headers["Content-Type"], "text/event-stream")
        first = self.data(stream)
        self.assertTrue(any(e["kind"] == "epoch_start" for e in first["events"]))
        deadline = time.monotonic() + 60  # other tests may keep the machine busy for a while
        while True:
            train = self.data(stream)["jobs"][0]
            ranks = {r[0]: r for n in train["nodes"] for r in n["ranks"]}
            latest = max(ranks.values(), key=lambda r: r[2])
            if train["stats"] is not None and train["tier"] == "frozen" and latest[0] == 2 and latest[2] > 40:
                break
            self.assertLess(time.monotonic(), deadline, train)
        self.assertEqual((train["state"], train["size"]), ("running", 4))
        self.assertEqual(ranks[2][4], job.rank_pid(2))
        known = first["events"][-1]["number"]
        job.touch("end")
        job.check_ok(60)
        said = []
        while not any(e["kind"] == "job_forgotten" for e in said):
            look = self.data(stream)
            said += look["events"]
            self.assertLess(time.monotonic(), deadline + 30, said)
        self.assertGreater(min(e["number"] for e in said), known)  # each once
        self.assertEqual(len({e["number"] for e in said}), len(said))
        self.assertEqual(self.data(stream)["jobs"], [])

    def test_a_browser_shows_it(self):
        self.job()
        browser = webdriver.Browser(self)
        browser.go(self.link("--control").geturl())
        harness.wait_until(lambda: "is late: the others wait for it" in browser.run("return $('trouble').textContent"), 40,
                           "the straggler on the page")
        self.assertRegex(browser.run("return $('trouble').textContent"), r"^Rank 2 \(node node1, pid \d+\) is late")
        self.assertEqual(browser.run("return $('link').textContent"), "live")
        harness.wait_until(lambda: browser.run("return $('tier').textContent") == "frozen", 60, "the frozen tier on the page")
        cells = browser.run("return [...document.querySelectorAll('#grid i')].map((c) => [c.textContent, getComputedStyle(c).backgroundColor])")
        self.assertEqual([rank for rank, _ in cells], ["0", "1", "2", "3"])
        colours = dict(cells)
        self.assertNotEqual(colours["2"], colours["0"])
        harness.wait_until(lambda: browser.run("const c = charts.late.data.datasets[0]; return c.label == 'rank 2' && c.data.at(-1) > 40"),
                           60, "the straggler in the chart")
        self.assertEqual(browser.run("$('record').click(); return $('record').textContent"), "Start a timeline")
        harness.wait_until(lambda: browser.run("return $('recorded').textContent").startswith("Rank 0 (host "), 60, "the timeline's file")
        self.assertEqual(browser.run("$('record').click(); return $('record').textContent"), "Stop the timeline")
        harness.wait_until(lambda: browser.run("return $('recorded').textContent").startswith("The last timeline is on "), 60,
                           "the timeline's end")
        light = browser.run("return getComputedStyle(document.body).backgroundColor")
        browser.dark()
        self.assertNotEqual(browser.run("return getComputedStyle(document.body).backgroundColor"), light)
        # A job of 1,024 nodes takes a part of the second that there is until the next look.
        took, cells, gpus = browser.run(LARGE)
        self.assertEqual(cells, 8192)
        self.assertLess(took, 1000)
        self.assertEqual(gpus[:2] + gpus[64:], ["node77GPU-77-00 % 30.0GB of 80.0GB", "node77GPU-77-11 % 30.0GB of 80.0GB",
                                                "8128 more GPUs are as busy or busier"])
        self.assertEqual(browser.errors(), [])

    def test_an_operator_records_a_timeline(self):
        job = self.job()
        looks, controls = self.session(), self.session("--control")
        stream = self.get("/stream", looks)
        name = self.data(stream)["jobs"][0]["job"]
        order, own = "/timeline?job=" + name, {"X-Maypole": "1"}
        self.assertEqual(self.get(order, method="POST", headers=own).status, 401)
        for cookie, headers in ((looks, own), (controls, {})):  # a page of another server has the cookie only
            reply = self.get(order, cookie, method="POST", headers=headers)
            self.assertEqual(reply.status, 403)
            self.assertIn("maypolectl dashboard --control", reply.read().decode())
        for path, words in (("/timeline?job=other", 'there is no job "other"'), ("/timeline", 'there is no job ""'),
                            (order + "&stop=1", "the job's timeline is not on")):
            reply = self.get(path, controls, method="POST", headers=own)
            self.assertEqual(reply.status, 409)
            self.assertIn(words, reply.read().decode())
        self.assertIsNone(self.data(stream)["jobs"][0]["timeline"])
        reply = self.get(order, controls, method="POST", headers=own)
        self.assertEqual(reply.status, 200)
        file = reply.read().decode()
        self.assertEqual(file, "maypole-timeline-%s-%d-1-1.json" % (name, job.rank_pid(0)))
        again = self.ctl("timeline", name)
        self.assertEqual(again.returncode, 1)
        self.assertIn("the job's timeline is on already: rank 0 writes '%s'" % file, again.stderr)
        path = os.path.join(job.dir, file)
        harness.wait_until(lambda: os.path.exists(path) and os.path.getsize(path) > 20000, 60, "records in the file")
        said = self.ctl("timeline", name, "--stop")
        self.assertEqual(said.stdout, "job %s: rank 0 (host %s) completes the timeline %s in its directory\n"
                         % (name, socket.gethostname(), file), said.stderr)
        harness.wait_until(lambda: self.data(stream)["jobs"][0]["timeline"]["state"] == "off", 60, "the timeline's end")
        with open(path, encoding="utf-8") as f:
            events = json.load(f)
        late = collections.Counter()
        for event in events:
            if event.get("cat") == "critical_path" and "args" in event:
                late[event["args"]["rank"]] += event["dur"]
        self.assertEqual(late.most_common(1)[0][0], 2, late)
        self.assertEqual({e["args"]["rank"] for e in events if e.get("args", {}).get("tensor") == "t0"}, {0, 1, 2, 3})
        # Where there is such a file already, and where there is no place.
        os.mkdir(os.path.join(job.dir, file.replace("-1.json", "-2.json")))
        self.assertEqual(self.ctl("timeline", name).returncode, 0)
        harness.wait_until(lambda: "cannot be made in %s: File exists" % job.dir in self.data(stream)["jobs"][0]["timeline"]["error"],
                           60, "the error")
        job.touch("end")
        job.check_ok(60)

    def test_too_many_browsers_and_bad_ones(self):
        cookie = self.session()
        host, port = self.announced["dashboard"].rsplit(":", 1)
        for junk in (b"", b"GET", b"\x16\x03\x01\x00", b"GET / HTTP/1.1\r\nCookie: " + 10000 * b"x"):
            hostile = socket.create_connection((host, int(port)))
            self.addCleanup(hostile.close)
            hostile.sendall(junk)
        streams = [self.get("/stream", cookie) for _ in range(WATCHERS)]
        for stream in streams:
            self.data(stream)
        refused = self.get("/stream", cookie)
        self.assertEqual(refused.status, 503)
        self.assertIn("16 browsers", refused.read().decode())
        streams[0].close()
        streams[0].connection.close()
        harness.wait_until(lambda: self.get("/stream", cookie).status == 200, 20, "a place for another browser")
        # Strangers displace each other, and nobody else.
        crowd = [socket.create_connection((host, int(port)), source_address=("127.0.0.2", 0)) for _ in range(5 * STRANGERS)]
        for stranger in crowd:
            self.addCleanup(stranger.close)
        began = time.monotonic()
        harness.wait_until(lambda: len(select.select(crowd, [], [], 0)[0]) >= 4 * STRANGERS, 8, "the oldest strangers to be dropped")
        self.assertEqual(self.get("/app.js", cookie).status, 200)
        self.data(streams[1])
        # Those that are left have their time, whatever they send.
        while len(select.select(crowd, [], [], 0)[0]) < len(crowd):
            with contextlib.suppress(OSError):
                crowd[-1].sendall(b"G" if time.monotonic() - began < 1 else b"E")
            time.sleep(0.1)
            self.assertLess(time.monotonic() - began, 30)
        # The coordinator ends at once, whoever looks.
        began = time.monotonic()
        self.end()
        self.assertLess(time.monotonic() - began, 10)


class NoDashboardTest(CoordinatorTest):
    flags = []

    def test_it_is_off(self):
        self.assertNotIn("dashboard", self.announced)
        said = self.ctl("dashboard")
        self.assertEqual(said.returncode, 1)
        self.assertIn("the coordinator has no dashboard; start it with --dashboard=HOST:PORT", said.stderr)


class TlsTest(CoordinatorTest):
    def setUp(self):
        certs = tempfile.TemporaryDirectory(prefix="mp", dir="/tmp")
        self.addCleanup(certs.cleanup)
        self.certs = certs.name
        for where in (self.certs, os.path.join(self.certs, "foreign")):
            subprocess.run(["bash", MAKE_CERTS, where, "127.0.0.1"], check=True, capture_output=True)
        self.flags = self.flags + ["--tls_ca=" + self.file("ca.pem"), "--tls_cert=" + self.file("coordinator.pem"),
                                   "--tls_key=" + self.file("coordinator.key")]
        super().setUp()

    def file(self, name):
        return os.path.join(self.certs, name)

    def get_with(self, who, path="/", cookie=None):
        """As a browser with this certificate."""
        context = ssl.create_default_context(cafile=self.file("ca.pem"))
        if who:
            context.load_cert_chain(self.file(who + ".pem"), self.file(who + ".key"))
        host, port = self.announced["dashboard"].rsplit(":", 1)
        connection = http.client.HTTPSConnection(host, int(port), timeout=20, context=context)
        self.addCleanup(connection.close)
        connection.request("GET", path, headers={"Cookie": cookie} if cookie else {})
        return connection.getresponse()

    def test_an_operators_certificate_needs_no_link(self):
        self.assertEqual(self.get_with("admin").status, 200)
        self.assertEqual(self.get_with("node").status, 401)
        self.assertEqual(self.get_with(None).status, 401)
        with self.assertRaises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
            self.get_with("foreign/admin")
        said = self.ctl("--tls_ca", self.file("ca.pem"), "--tls_cert", self.file("admin.pem"), "--tls_key", self.file("admin.key"),
                        "dashboard")
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertTrue(said.stdout.startswith("https://"), said.stdout)
        link = urllib.parse.urlsplit(said.stdout.strip())
        reply = self.get_with(None, link.path + "?" + link.query)
        self.assertEqual(reply.status, 303)
        self.assertIn("; Secure", reply.headers["Set-Cookie"])
        stream = self.get_with(None, "/stream", reply.headers["Set-Cookie"].split(";")[0])
        self.assertTrue(stream.readline().startswith(b"data: {"))

    def test_a_session_is_resumed_with_the_rights_of_its_certificate(self):
        host, port = self.announced["dashboard"].rsplit(":", 1)
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            for who, status in ((None, b"401"), ("node", b"401"), ("admin", b"200")):
                context = ssl.create_default_context(cafile=self.file("ca.pem"))
                context.minimum_version = context.maximum_version = version
                if who:
                    context.load_cert_chain(self.file(who + ".pem"), self.file(who + ".key"))
                session = None
                for resumed in (False, True, True):
                    with socket.create_connection((host, int(port)), timeout=20) as plain, \
                            context.wrap_socket(plain, server_hostname=host, session=session) as s:
                        self.assertEqual(s.session_reused, resumed, (version, who))
                        s.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                        self.assertEqual(s.recv(4096).split()[1], status, (version, who, resumed))
                        session = s.session

    def test_a_browser_over_https(self):
        said = self.ctl("--tls_ca", self.file("ca.pem"), "--tls_cert", self.file("admin.pem"), "--tls_key", self.file("admin.key"),
                        "dashboard")
        key = subprocess.run("openssl x509 -in '%s' -pubkey -noout | openssl pkey -pubin -outform DER | openssl dgst -sha256 -binary | base64"
                             % self.file("coordinator.pem"), shell=True, check=True, capture_output=True, text=True).stdout.strip()
        browser = webdriver.Browser(self, "--ignore-certificate-errors-spki-list=" + key)
        browser.go(said.stdout.strip())
        harness.wait_until(lambda: browser.run("return $('link').textContent") == "live", 40, "the stream")
        # Six connections at a time, again and again: they resume.
        self.assertEqual(browser.run(
            "const all = []; for (let i = 0; i < 5; ++i) all.push(...await Promise.all([...Array(6)].map("
            "async () => (await fetch('/app.js', {cache: 'no-store'})).status))); return [...new Set(all)]"), [200])
        self.assertEqual(browser.run("return $('link').textContent"), "live")
        self.assertEqual([e for e in browser.errors() if e["level"] == "SEVERE"], [])


if __name__ == "__main__":
    unittest.main()
