"""A Ray cluster of several nodes on this machine, each with a loopback address of its own, for tests.

    with ray_cluster.Cluster(environments.python("ray-2.60")) as cluster:
        cluster.add("127.0.0.2", cpus=2)           # the first one is the head
        node = cluster.add("127.0.0.3", cpus=2)
        done = cluster.run("values")                # a function of ray_programs.py, as a driver
        cluster.remove(node)

The cluster ends everything that it has started, by process id; its files are in one directory, which it removes.
"""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile

import harness

PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ray_programs.py")
_SECONDS = 120  # Ray's start, on a busy machine


class Driver:
    """A driver, whose output is in files: it may be killed."""

    def __init__(self, cluster, argv, env):
        self._out = os.path.join(cluster.dir, "out.%d" % cluster.count())
        with open(self._out, "wb") as out, open(self._out + ".err", "wb") as err:
            self.process = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err)

    def output(self):
        with open(self._out, encoding="utf-8") as f:
            return f.read()

    def errors(self):
        with open(self._out + ".err", encoding="utf-8", errors="replace") as f:
            return f.read()

    def said(self):
        """The values that it has said (ray_programs.say()), by name."""
        lines = [line[len("SAID "):] for line in self.output().splitlines() if line.startswith("SAID ")]
        return {name: value for name, value in map(json.loads, lines)}

    def await_said(self, name, seconds):
        def said():
            if self.process.poll() is not None and name not in self.said():
                raise AssertionError("the driver ended without %s: %s" % (name, self.errors()[-4000:]))
            return name in self.said()
        harness.wait_until(said, seconds, name)
        return self.said()[name]

    def check_ok(self, seconds):
        if self.process.wait(timeout=seconds) != 0:
            raise AssertionError("the driver ended with status %d:\n%s\n%s" %
                                 (self.process.returncode, self.output()[-2000:], self.errors()[-6000:]))
        return self.said()


class Cluster:

    def __init__(self, python):
        self.python = python
        self.dir = tempfile.mkdtemp(prefix="mpr", dir="/tmp")  # short: sockets lie in here
        self.runtime = os.path.join(self.dir, "m")  # of our daemons: so that leftovers are seen
        os.mkdir(self.runtime)
        self._token = secrets.token_hex(32)  # of Ray, for this cluster
        self._nodes = []
        self._drivers = []
        self._files = 0
        with socket.socket() as probe:
            probe.bind(("127.0.0.2", 0))
            self.address = "127.0.0.2:%d" % probe.getsockname()[1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in [driver.process for driver in self._drivers] + self._nodes[::-1]:
            harness.kill_tree(process)
        try:
            harness.wait_until(lambda: not self.daemons(), 30, "the end of the daemons")
        finally:
            for pid in self.daemons():
                harness.kill(pid)
            shutil.rmtree(self.dir, ignore_errors=True)

    def count(self):
        self._files += 1
        return self._files

    def environment(self, extra=None):
        env = harness.environment({
            # Else it depends on whether there is a token in the user's home.
            "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self._token,
            "RAY_TMPDIR": self.dir, "TMPDIR": self.dir, "RAY_USAGE_STATS_ENABLED": "0", "RAY_ADDRESS": self.address,
            "MAYPOLE_RUNTIME_DIR": self.runtime, "RAY_TEST_IP": "127.0.0.2", "RAY_DEDUP_LOGS": "0"})
        env.update(extra or {})
        return env

    def add(self, ip, cpus):
        """Starts a Ray node, waits until it is ready, and returns it."""
        log = os.path.join(self.dir, "node.%d" % self.count())
        where = ["--address=" + self.address] if self._nodes else [
            "--head", "--port=" + self.address.partition(":")[2], "--include-dashboard=false"]
        argv = [os.path.join(os.path.dirname(self.python), "ray"), "start", *where, "--node-ip-address=" + ip,
                "--num-cpus=%d" % cpus, "--object-store-memory=80000000", "--disable-usage-stats", "--block"]
        env = self.environment()
        del env["RAY_ADDRESS"]
        with open(log, "wb") as out:
            process = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=self.dir)
        self._nodes.append(process)

        def ready():
            with open(log, encoding="utf-8", errors="replace") as f:
                text = f.read()
            if process.poll() is not None:
                raise AssertionError("ray start has ended: " + text[-3000:])
            return "Ray runtime started." in text
        harness.wait_until(ready, _SECONDS, "the Ray node " + ip)
        return process

    def remove(self, node):
        """As if its machine were switched off."""
        harness.kill_tree(node)
        self._nodes.remove(node)

    def start(self, name, *args, env=None):
        """Starts a function of ray_programs.py as a driver."""
        return self.start_program(PROGRAMS, name, *map(str, args), env=env)

    def start_program(self, *argv, env=None):
        """Starts a Python program as a driver."""
        driver = Driver(self, [self.python, *argv], self.environment(env))
        self._drivers.append(driver)
        return driver

    def run(self, name, *args, env=None, seconds=150):
        """start(), to its end; what it has said."""
        return self.start(name, *args, env=env).check_ok(seconds)

    def daemons(self):
        """{pid: argv} of Maypole's daemons of this cluster's jobs, and of the programs that run them."""
        found = {}
        for pid, (_, argv) in harness.processes().items():
            try:
                with open("/proc/%d/environ" % pid, "rb") as f:
                    ours = ("MAYPOLE_RUNTIME_DIR=%s\0" % self.runtime).encode() in f.read()
            except OSError:
                continue
            if ours and any("maypole-" in word or "maypole.ray" in word for word in argv[:3]):
                found[pid] = argv
        return found

    def leftovers(self):
        """What a job that has ended must not leave: processes, files."""
        return list(self.daemons().values()) + os.listdir(self.runtime)


if __name__ == "__main__":
    sys.exit("this is a module of ray_test.py")
