"""maypole-worker as an operator meets it: --help, --version, wrong calls."""

import os
import socket
import subprocess
import tempfile
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
            "--metrics=127.0.0.1:0",
            "--chunk_bytes=524288",
            "--start_timeout=2m",
            "--version",
        ]:
            self.assertIn(word, result.stdout)
        self.assertNotIn("--control_fd", result.stdout)

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
        self.assert_one_line(run(good, "stray"), "'stray' is not a flag")
        self.assert_one_line(run(good, "--nosuch"), "no flag '--nosuch'")
        self.assert_one_line(run(good, "--slots=many"), "--slots='many'")
        self.assert_one_line(run(good, "--metrics=9"), "is not HOST:PORT")
        self.assert_one_line(run(good, "--log_level=loud"), "'loud'")
        self.assert_one_line(run(good, "--node=a b"), "--node")

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
