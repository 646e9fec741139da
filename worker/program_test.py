"""maypole-worker as an operator meets it: --help, --version, wrong calls."""

import os
import socket
import subprocess
import tempfile
import time
import unittest

PROGRAM = os.path.join(
    os.environ["TEST_SRCDIR"],
    os.environ["TEST_WORKSPACE"],
    "worker/maypole-worker",
)
PATIENCE = 30  # seconds


def run(*flags):
    return subprocess.run(
        [PROGRAM, *flags], capture_output=True, text=True, timeout=PATIENCE
    )


class ProgramTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def assert_one_line(self, result, *parts):
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("maypole-worker: "))
        for part in parts:
            self.assertIn(part, result.stderr)

    def test_help_shows_usage_example_and_every_flag(self):
        result = run("--help")
        self.assertEqual(result.returncode, 0)
        for word in [
            "Usage:",
            "Example:",
            "--socket=",
            "--coordinator=",
            "--tls_ca=",
            "--tls_key=",
            "--version",
        ]:
            self.assertIn(word, result.stdout)
        self.assertNotIn("--control_fd", result.stdout)
        self.assertNotIn("--executor", result.stdout)
        for flag, default in [
            ("metrics", "127.0.0.1:0"),
            ("chunk_bytes", "1048576"),
            ("start_timeout", "2m"),
            ("slots", "16384"),
        ]:
            self.assertRegex(
                " ".join(result.stdout.split()),
                rf"--{flag}=[^=]*\[default: {default}\]",
            )
        self.assertLessEqual(max(map(len, result.stdout.splitlines())), 80)

    def test_version(self):
        result = run("--version")
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stdout, r"^maypole-worker \d+\.\d+\.\d+\n")

    def test_bad_flags_are_one_clear_line(self):
        self.assert_one_line(run(), "--coordinator", "required")
        self.assert_one_line(
            run("--coordinator=foo"), "--coordinator=foo is not HOST:PORT"
        )
        good = "--coordinator=127.0.0.1:1"
        self.assert_one_line(run(good, "stray"), "unexpected argument 'stray'")
        self.assert_one_line(run(good, "--nosuch"), "no flag '--nosuch'")
        self.assert_one_line(
            run(good, "--network_timout=3s"),
            "did you mean '--network_timeout'?",
        )
        self.assert_one_line(
            run(good, "--slots=many"),
            '--slots: expected an integer from 64 to 16384, got "many"',
        )
        self.assert_one_line(
            run(good, "--network_congestion=hope"),
            "cannot use --network_congestion=hope",
        )
        self.assert_one_line(
            run(good, "--network=a,b,c,d,e"),
            "--network has 5 addresses; at most 4 are allowed",
        )
        self.assert_one_line(
            run(good, "--network_backend=gloo"),
            "--network_backend='gloo': expected tcp, ucx or auto",
        )
        self.assert_one_line(
            run(good, "--network_backend=ucx", "--network_encryption=on"),
            "UCX does not encrypt",
        )
        self.assert_one_line(
            run(good, "--network_encryption=yes"),
            "--network_encryption='yes': expected off, on (",
        )
        self.assert_one_line(
            run("--coordinator=192.0.2.1:1", "--network_encryption=require"),
            "required network encryption needs a coordinator with TLS",
        )
        self.assert_one_line(run(good, "--metrics=9"), "is not HOST:PORT")
        self.assert_one_line(run(good, "--log_level=loud"), '"loud"')
        for flag in ["--node", "--host"]:
            self.assert_one_line(
                run(good, f"{flag}=a b"),
                f"{flag} must be 1 to 63 printable ASCII characters without "
                "spaces, quotes, slashes and backslashes, not 'a b'",
            )

    def test_a_secret_file_that_is_a_fifo_is_refused_at_once(self):
        path = os.path.join(self.directory, "fifo")
        os.mkfifo(path, 0o600)
        self.assert_one_line(
            run("--coordinator=127.0.0.1:1", f"--secret_file={path}"),
            f"secret file {path}: must be a regular file",
        )

    def test_a_secret_that_others_than_its_owner_can_read_is_refused(self):
        path = os.path.join(self.directory, "secret")
        with open(path, "w", encoding="ascii") as secret:
            secret.write("sesame\n")
        for mode in [0o644, 0o640]:
            os.chmod(path, mode)
            self.assert_one_line(
                run("--coordinator=127.0.0.1:1", f"--secret_file={path}"),
                f"chmod 600 {path}",
            )

    def test_a_short_secret_is_warned_of(self):
        path = os.path.join(self.directory, "secret")
        with open(path, "w", encoding="ascii") as secret:
            secret.write("abc\n")
        os.chmod(path, 0o600)
        with socket.create_server(("127.0.0.1", 0)) as taken:  # so that it ends
            result = run(
                "--coordinator=127.0.0.1:1",
                f"--socket={self.directory}/s",
                f"--secret_file={path}",
                "--metrics=127.0.0.1:%d" % taken.getsockname()[1],
            )
        self.assertIn("level=warning", result.stderr)
        self.assertIn("the secret has 3 characters", result.stderr)
        self.assertIn("a good one has at least 16", result.stderr)

    def test_of_agents_that_start_at_once_one_serves_and_others_name_it(self):
        path = os.path.join(self.directory, "s")
        for _ in range(10):  # a stale socket is there from the second on
            agents = [
                subprocess.Popen(
                    [PROGRAM, "--coordinator=127.0.0.1:1", f"--socket={path}"],
                    stderr=subprocess.PIPE,
                    text=True,
                )
                for _ in range(3)
            ]
            for agent in agents:
                self.addCleanup(agent.kill)
            # An agent that has not won ends on its own.
            give_up = time.monotonic() + PATIENCE
            while sum(a.poll() is None for a in agents) > 1:
                self.assertLess(time.monotonic(), give_up, "two serve one socket")
                time.sleep(0.005)
            (winner,) = [a for a in agents if a.poll() is None]
            # The winner answers a client that connects.
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
                client.settimeout(PATIENCE)
                client.connect(path)
                client.send(b"garbage")
                self.assertIn(b"is it a Maypole process?", client.recv(4096))
            winner.kill()
            for agent in agents:
                text = agent.communicate()[1]
                if agent is winner:
                    continue
                self.assertEqual(agent.returncode, 1)
                self.assertIn(f"already listens at {path} (pid {winner.pid}, uid ", text)

    def test_moves_data_without_the_library_gloo(self):
        needed = subprocess.check_output(["readelf", "-d", PROGRAM], text=True)
        self.assertIn("(NEEDED)", needed)
        self.assertNotIn("gloo", needed)

    def test_a_metrics_port_in_use_is_one_clear_line(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = "127.0.0.1:%d" % taken.getsockname()[1]
            result = run(
                "--coordinator=127.0.0.1:1",
                f"--socket={self.directory}/s",
                f"--metrics={address}",
            )
        self.assertEqual(result.returncode, 1)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertIn(
            f"cannot serve metrics: {address}: Address already in use; "
            "choose another --metrics",
            result.stderr,
        )


if __name__ == "__main__":
    unittest.main()
