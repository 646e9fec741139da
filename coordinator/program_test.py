"""maypole-coordinator as an operator uses it: flags, announcement, signals."""

import os
import re
import signal
import socket
import subprocess
import tempfile
import unittest
import urllib.request

PROGRAM = os.path.join(
    os.environ["TEST_SRCDIR"],
    os.environ["TEST_WORKSPACE"],
    "coordinator/maypole-coordinator",
)
PATIENCE = 30  # seconds


def run(*flags):
    return subprocess.run(
        [PROGRAM, *flags], capture_output=True, text=True, timeout=PATIENCE
    )


class Daemon:
    """A running coordinator; ends it on the way out."""

    def __init__(self, *flags):
        read, write = os.pipe()
        self.process = subprocess.Popen(
            [PROGRAM, f"--announce_fd={write}", *flags],
            pass_fds=[write],
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(write)
        with os.fdopen(read) as announced:
            self.line = announced.read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.returncode is None:
            self.process.kill()
            self.process.communicate()

    def address(self, what):
        return re.search(rf"\b{what}=(\S*)", self.line).group(1)

    def stop(self, number):
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, err


class ProgramTest(unittest.TestCase):
    def assert_one_line(self, result, *parts, status=2):
        self.assertEqual(result.returncode, status)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("maypole-coordinator: "))
        for part in parts:
            self.assertIn(part, result.stderr)

    def test_help_shows_usage_example_and_every_flag(self):
        result = run("--help")
        self.assertEqual(result.returncode, 0)
        for word in [
            "Usage:",
            "Example:",
            "--secret_file=",
            "--operator_secret_file=",
            "--tls_ca=",
            "--tls_key=",
            "--announce_fd=",
        ]:
            self.assertIn(word, result.stdout)
        for flag, default in [
            ("listen", "127.0.0.1:0"),
            ("metrics", "127.0.0.1:0"),
            ("start_timeout", "2m"),
            ("resume_timeout", "3s"),
            ("fusion_threshold", "67108864"),
            ("log_level", "info"),
            ("etcd_prefix", "/maypole/default"),
            ("lease_ttl", "5s"),
        ]:
            self.assertRegex(
                " ".join(result.stdout.split()),
                rf"--{flag}=[^=]*\[default: {default}\]",
            )
        self.assertLessEqual(max(map(len, result.stdout.splitlines())), 80)

    def test_version(self):
        result = run("--version")
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stdout, r"^maypole-coordinator \d+\.\d+\.\d+\n")

    def test_announces_serves_metrics_and_ends_by_sigterm(self):
        with Daemon() as daemon:
            self.assertRegex(
                daemon.line,
                r"^listen=127\.0\.0\.1:\d+ metrics=127\.0\.0\.1:\d+\n$",
            )
            url = f"http://{daemon.address('metrics')}/metrics"
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(url, timeout=PATIENCE) as page:
                self.assertIn(b"maypole_build_info{", page.read())
            status, log = daemon.stop(signal.SIGTERM)
            self.assertEqual(status, 0)
            self.assertIn("event=started ", log)
            self.assertIn("event=stopped", log)

    def test_ends_by_sigint(self):
        with Daemon("--metrics=") as daemon:
            self.assertRegex(daemon.line, r"^listen=127\.0\.0\.1:\d+ metrics=\n$")
            self.assertEqual(daemon.stop(signal.SIGINT)[0], 0)

    def test_a_port_in_use_is_one_clear_line(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = "127.0.0.1:%d" % taken.getsockname()[1]
            for flag in ["--listen", "--metrics"]:
                self.assert_one_line(
                    run(f"{flag}={address}"),
                    address,
                    "Address already in use",
                    f"choose another {flag}",
                    status=1,
                )

    def test_bad_flags_are_one_clear_line(self):
        self.assert_one_line(run("--listen=nowhere"), "is not HOST:PORT")
        self.assert_one_line(run("--listen=0.0.0.0:0"), "--secret_file")
        self.assert_one_line(
            run("--log_level=loud"),
            "--log_level: expected trace, debug,",
            'got "loud"',
        )
        self.assert_one_line(run("--start_timeout=0s"), "--start_timeout")
        self.assert_one_line(run("--announce_fd=99"), "Bad file descriptor")
        self.assert_one_line(run("stray"), "unexpected argument 'stray'")
        self.assert_one_line(run("--nosuch=1"), "there is no flag '--nosuch'")
        self.assert_one_line(run("--fusion_threshold=x"), "--fusion_threshold: ")
        self.assert_one_line(
            run("--secret_file=/nonexistent"), "/nonexistent", "No such file"
        )

    def test_bad_flags_of_an_election_are_one_clear_line(self):
        etcd = "--etcd=127.0.0.1:1"
        for flags, *parts in [
            (["--etcd=h"], "--etcd=h is not HOST:PORT"),
            (["--etcd=h:1,h:1"], "has h:1 twice"),
            (["--etcd=" + ",".join(f"h:{n}" for n in range(1, 18))], "at most 16"),
            ([etcd, "--etcd_prefix=maypole"], "must begin with a slash"),
            ([etcd, "--etcd_prefix=/a/"], "not end with one"),
            ([etcd, "--lease_ttl=1500ms"], "whole number of seconds"),
            ([etcd, "--lease_ttl=500ms"], "--lease_ttl"),
            ([etcd, "--advertise=h:0"], "the port that executors call"),
            ([etcd, "--etcd_tls_ca=/x"], "--etcd_tls_cert is missing"),
            (["--advertise=h:1"], "no effect without --etcd"),
        ]:
            with self.subTest(flags):
                self.assert_one_line(run(*flags), *parts)
        with tempfile.NamedTemporaryFile() as secret:
            secret.write(b"0123456789abcdef0123456789abcdef\n")
            secret.flush()
            self.assert_one_line(
                run(etcd, "--listen=0.0.0.0:0", f"--secret_file={secret.name}"),
                "give --advertise=HOST:PORT",
            )

    def test_without_etcd_there_is_no_leader_and_it_says_so(self):
        # Nobody listens at the discard port.
        with Daemon("--etcd=127.0.0.1:9", "--lease_ttl=1s") as daemon:
            url = f"http://{daemon.address('metrics')}/metrics"
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(url, timeout=PATIENCE) as page:
                self.assertIn(b"\nmaypole_coordinator_leader 0\n", page.read())
            for line in daemon.process.stderr:
                if "event=election_store_failed" in line:
                    break
            self.assertIn("127.0.0.1:9", line)
            self.assertEqual(daemon.stop(signal.SIGTERM)[0], 0)

    def test_the_operator_secret_must_be_another_one(self):
        with tempfile.NamedTemporaryFile() as secret:
            secret.write(b"0123456789abcdef0123456789abcdef\n")
            secret.flush()
            self.assert_one_line(
                run(
                    f"--secret_file={secret.name}",
                    f"--operator_secret_file={secret.name}",
                ),
                "--operator_secret_file must have another secret",
            )

    def test_a_secret_that_others_can_read_is_refused(self):
        with tempfile.NamedTemporaryFile() as secret:
            secret.write(b"sesame\n")
            secret.flush()
            for mode in [0o644, 0o640]:
                os.chmod(secret.name, mode)
                self.assert_one_line(
                    run(f"--secret_file={secret.name}"), "chmod 600"
                )


if __name__ == "__main__":
    unittest.main()
