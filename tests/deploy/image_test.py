"""deploy/docker: the Dockerfile, built by buildah; jobs run in its image by podman."""

import os
import shutil
import signal
import subprocess
import tempfile
import unittest

import containers
import harness
import installed

REASON = containers.available()


def end(process):
    """podman passes SIGTERM on to the container, and removes it."""
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=30)


@unittest.skipIf(REASON, REASON)
class ImageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.storage = containers.Storage()
        cls.storage.__enter__()
        cls.addClassCleanup(cls.storage.__exit__)
        context = os.path.join(cls.storage.dir, "packages")
        os.mkdir(context)
        installed.make_wheel(context)
        cls.storage.build(os.path.join(harness.ROOT, "deploy/docker/Dockerfile"), "maypole:0.1.0", context)
        # A copy, because Bazel's are links.
        app = os.path.join(cls.storage.dir, "app")
        os.mkdir(app)
        shutil.copy(os.path.join(harness.ROOT, "tests/programs/where.py"), app)
        cls.app = ["-v", app + ":/app:ro"]

    def run_ok(self, *command, options=()):
        done = self.storage.run("maypole:0.1.0", *command, options=["--network", "none", *self.app, *options])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return sorted(done.stdout.splitlines())

    def test_it_is_no_root_and_has_the_programs(self):
        programs = ("maypolerun", "maypolectl", "maypole-node-ranks")
        lines = self.run_ok("sh", "-c", "id -u; for p in %s; do $p --version; done" % " ".join(programs))
        self.assertIn("10001", lines)
        self.assertEqual(len(lines), 4)

    def test_a_job_in_one_container_that_cannot_be_written(self):
        lines = self.run_ok("maypolerun", "-np", "2", "python3", "/app/where.py",
                            options=["--read-only", "--cap-drop=all"])
        self.assertEqual(lines, ["[%d]<stdout>:rank %d of 2: local %d of 2, node 0 of 1: sum 3" % (r, r, r)
                                 for r in range(2)])
        print("\n".join(lines))

    def start(self, *command, options):
        process = self.storage.start("maypole:0.1.0", *command, options=[*self.app, *options])
        self.addCleanup(process.stdout.close)
        self.addCleanup(end, process)
        return process

    def test_a_coordinator_an_agent_and_ranks_in_containers_of_their_own(self):
        # Loopback of a network namespace, because the containers share its network.
        shared = tempfile.mkdtemp(prefix="mps", dir="/tmp")
        self.addCleanup(subprocess.run, ["rm", "-r", shared], check=True)
        os.chmod(shared, 0o755)
        agent = shared + "/agent.sock"
        network = ["--network", "host"]
        coordinator = self.start("sh", "-c", "exec maypole-coordinator --listen=127.0.0.1:0 --metrics= "
                                 "--announce_fd=3 3>&1", options=network)
        address = self.announced(coordinator, "listen=")
        worker = self.start("sh", "-c", "exec maypole-worker --coordinator=%s --metrics=127.0.0.1:0 --socket=%s "
                            "--announce_fd=3 3>&1" % (address, agent),
                            options=network + ["--user", "0", "--cap-drop=all", "--cap-add=KILL,SETGID,SETUID",
                                               "-v", shared + ":" + shared])
        self.announced(worker, "socket=")
        ranks = []
        for rank in range(2):
            place = {"RANK": rank, "SIZE": 2, "LOCAL_RANK": rank, "LOCAL_SIZE": 2, "JOB": "train", "AGENT": agent,
                     "TOKEN": "the token of this test"}
            ranks.append(self.start("python3", "/app/where.py",
                                    options=["--network", "none", "--cap-drop=all", "-v", "%s:%s:ro" % (shared, shared)]
                                    + ["--env=MAYPOLE_%s=%s" % item for item in place.items()]))
        printed = [rank.communicate(timeout=60)[0] for rank in ranks]
        self.assertEqual(printed, ["rank %d of 2: local %d of 2, node 0 of 1: sum 3\n" % (r, r) for r in range(2)])
        print("".join(printed))

    def announced(self, process, key):
        """The value after `key` in the line by which a daemon says that it is ready."""
        for line in process.stdout:
            words = dict(word.partition("=")[::2] for word in line.split() if "=" in word)
            if key.rstrip("=") in words and line.startswith(("listen=", "metrics=")):
                return words[key.rstrip("=")]
        raise AssertionError("the container has ended")


if __name__ == "__main__":
    unittest.main()
