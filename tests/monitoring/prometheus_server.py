"""A real Prometheus (Debian's) on loopback, for tests.

    with prometheus_server.Prometheus({"node0": "127.0.0.1:9402"}) as p:
        p.await_up(10)
        p.value('maypole_ranks{endpoint="node0"}')

Every target has the label `endpoint` with its name here. Names that end in
"coordinator" are targets of the job maypole-coordinator, the others of the job
maypole-worker, as in deploy/prometheus, whose alert rules are loaded. Configuration and data are in a directory
of the server's own, which is removed at the end.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

import harness

SCRAPE_MS = 200


def tool(name):
    """The program's path, or None."""
    return shutil.which(name, path=harness.environment()["PATH"])


def missing():
    """None, or the reason why the tests cannot use Prometheus."""
    absent = [n for n in ("prometheus", "promtool") if tool(n) is None]
    return " and ".join(absent) + " not installed (package prometheus)" if absent else None


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def fetch(address):
    """The current text of an endpoint."""
    with urllib.request.urlopen("http://%s/metrics" % address, timeout=5) as reply:
        return reply.read().decode()


def check_metrics(text):
    """(status, output) of `promtool check metrics`."""
    done = subprocess.run([tool("promtool"), "check", "metrics"], input=text, capture_output=True, text=True,
                          timeout=30, env=harness.environment())
    return done.returncode, done.stdout + done.stderr


class Prometheus:
    def __init__(self, targets):
        """targets: {name: "HOST:PORT"}."""
        self.targets = targets
        self.process = None
        self.dir = tempfile.mkdtemp(prefix="mpprom", dir="/tmp")
        config = {
            "global": {"scrape_interval": "%dms" % SCRAPE_MS, "scrape_timeout": "%dms" % SCRAPE_MS,
                       "evaluation_interval": "1s"},
            "rule_files": [os.path.join(harness.ROOT, "deploy", "prometheus", "alerts.yml")],
            # The label job is the training job's.
            "scrape_configs": [{"job_name": job, "honor_labels": True, "static_configs": [
                {"targets": [address], "labels": {"endpoint": name}} for name, address in targets.items()
                if name.endswith("coordinator") == (job == "maypole-coordinator")]}
                for job in ("maypole-coordinator", "maypole-worker")],
        }
        with open(os.path.join(self.dir, "prometheus.yml"), "w") as f:
            json.dump(config, f)  # which is YAML

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def _start(self):
        for attempt in range(3):  # somebody may take the port first
            self.address = "127.0.0.1:%d" % free_port()
            with open(os.path.join(self.dir, "log"), "ab") as log:
                self.process = subprocess.Popen(
                    [tool("prometheus"), "--config.file=" + os.path.join(self.dir, "prometheus.yml"),
                     "--storage.tsdb.path=" + os.path.join(self.dir, "data"),
                     "--web.listen-address=" + self.address, "--log.level=warn"],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.dir, env=harness.environment())
            if self._await_ready(30):
                return
            self._end()
        raise AssertionError("prometheus does not start")

    def _await_ready(self, seconds):
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                with urllib.request.urlopen("http://%s/-/ready" % self.address, timeout=2):
                    return True
            except OSError:
                time.sleep(0.05)
        return False

    def _ask(self, what, **parameters):
        url = "http://%s/api/v1/%s?%s" % (self.address, what, urllib.parse.urlencode(parameters))
        with urllib.request.urlopen(url, timeout=10) as reply:
            answer = json.load(reply)
        if answer["status"] != "success":
            raise AssertionError("%s %s: %r" % (what, parameters, answer))
        return answer["data"]

    def query(self, text):
        """[(labels, value)] of an instant query."""
        return [(r["metric"], float(r["value"][1])) for r in self._ask("query", query=text)["result"]]

    def rules(self):
        """{alert: its state and health} as Prometheus' API has it."""
        return {rule["name"]: rule for group in self._ask("rules")["groups"] for rule in group["rules"]}

    def value(self, text):
        """The value of a query with one series; None if it has no series."""
        found = self.query(text)
        if len(found) > 1:
            raise AssertionError("%s has %d series: %r" % (text, len(found), found))
        return found[0][1] if found else None

    def await_values(self, wanted, seconds=15):
        """Waits until {query: value} holds; on failure reports the actual values."""
        seen = {}

        def there():
            seen.update({text: self.value(text) for text in wanted})
            return seen == wanted
        try:
            harness.wait_until(there, seconds, "values")
        except AssertionError:
            wrong = {t: (seen[t], wanted[t]) for t in wanted if seen[t] != wanted[t]}
            raise AssertionError("(is, should be): %r" % wrong)

    def await_up(self, seconds=15):
        """Waits until all targets have been scraped."""
        self.await_values({"sum(up)": len(self.targets)}, seconds)

    def _end(self):
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __exit__(self, kind, value, trace):
        self._end()
        if kind is not None:
            with open(os.path.join(self.dir, "log"), errors="replace") as f:
                sys.stderr.write("--- prometheus\n%s\n" % f.read()[-3000:])
        shutil.rmtree(self.dir, ignore_errors=True)
        return False
