"""Clients and daemons of different versions give one line that names both. And all files name the same version."""

import os
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import unittest

import daemons
import harness

MAGIC = 0x4D41594C
HELLO, REFUSED = 1, 2
REFUSED_BYTES = 16 + 8 + 1024
HEADER = struct.Struct("@IIII")  # magic, version, type, size: never changes (common/wire/session_messages.h)


def message(version, kind, payload):
    return HEADER.pack(MAGIC, version, kind, HEADER.size + len(payload)) + payload


def run_client(answer):
    """A real client against an agent that answers answer(Hello): (Hello, completed process)."""
    at = tempfile.mkdtemp(prefix="mpv", dir="/tmp")
    heard = []

    def serve(listener):
        connection, _ = listener.accept()
        with connection:
            heard.append(connection.recv(4096))
            connection.send(answer(heard[0]))

    try:
        path = os.path.join(at, "agent")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(path)
            listener.listen()
            listener.settimeout(30)
            thread = threading.Thread(target=serve, args=(listener,))
            thread.start()
            env = {"MAYPOLE_RANK": "0", "MAYPOLE_SIZE": "2", "MAYPOLE_LOCAL_RANK": "0", "MAYPOLE_LOCAL_SIZE": "2",
                   "MAYPOLE_JOB": "j", "MAYPOLE_TOKEN": "t", "MAYPOLE_AGENT": path}
            done = subprocess.run([harness.PYTHON, os.path.join(harness.ROOT, "tests/programs/where.py")],
                                  env=harness.environment(env), capture_output=True, text=True, timeout=60,
                                  stdin=subprocess.DEVNULL)
            thread.join()
        return heard[0], done
    finally:
        shutil.rmtree(at)


def version_of(data):
    return HEADER.unpack_from(data)[1]


class VersionsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        hello, _ = run_client(lambda hello: message(version_of(hello), REFUSED, b"\0" * (REFUSED_BYTES - HEADER.size)))
        cls.ours = version_of(hello)

    def check_client(self, version, size):
        """What the real agent answers to a Hello of another version."""
        with daemons.Daemons(1) as d:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
                client.settimeout(10)
                client.connect(d.sockets[0])
                client.send(message(version, HELLO, b"\1" * size))
                answer = client.recv(4096)
            log = d.log()
        magic, said, kind, length = HEADER.unpack_from(answer)
        self.assertEqual((magic, said, kind, length), (MAGIC, self.ours, REFUSED, len(answer)))
        text = answer[HEADER.size + 8:].split(b"\0")[0].decode()
        self.assertEqual(text, "the client speaks version %d of the session protocol, this side version %d; install "
                               "the same Maypole on both sides" % (version, self.ours))
        # The operator's events show it, too.
        self.assertEqual(len([line for line in log.splitlines() if text in line]), 1, log)
        print(text)

    def test_older_client(self):
        self.check_client(self.ours - 1, 300)

    def test_newer_client_with_other_structs(self):
        self.check_client(self.ours + 6, 1500)

    def check_agent(self, version):
        _, done = run_client(lambda _: message(version, REFUSED, b"\0" * 40))
        self.assertEqual(done.returncode, 1)
        last = done.stderr.splitlines()[-1]
        self.assertIn("the agent speaks version %d of the session protocol, this side version %d; install the same "
                      "Maypole on both sides" % (version, self.ours), last)
        print(last)

    def test_older_agent(self):
        self.check_agent(self.ours - 1)

    def test_newer_agent(self):
        self.check_agent(self.ours + 6)

    def test_something_else_that_listens_there(self):
        _, done = run_client(lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n")
        self.assertEqual(done.returncode, 1)
        self.assertIn("the agent does not speak Maypole's session protocol", done.stderr.splitlines()[-1])
        print(done.stderr.splitlines()[-1])


class ReleaseTest(unittest.TestCase):
    def said_by(self, *argv):
        done = subprocess.run(argv, env=harness.environment(), capture_output=True, text=True, timeout=60,
                              stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.splitlines()

    def test_all_programs_and_the_package_print_the_same_version(self):
        said = {}
        for path in harness.PROGRAMS + ["client/ctl/maypolectl"]:
            name, version = self.said_by(os.path.join(harness.ROOT, path), "--version")[0].split()
            self.assertEqual(name, os.path.basename(path))
            said[name] = version
        said["package"] = self.said_by(harness.PYTHON, "-c", "import maypole; print(maypole.__version__)")[0]
        said["-m maypole"] = self.said_by(harness.PYTHON, "-m", "maypole")[0].partition("maypole: ")[2]
        built = self.said_by(os.path.join(harness.ROOT, harness.PROGRAMS[0]), "--check-build")[0]
        said["--check-build"] = built.partition("Maypole v")[2].partition(" ")[0]
        self.assertEqual(len(said), 7)
        self.assertEqual(set(said.values()), {said["package"]}, said)
        self.assertRegex(said["package"], r"^\d+\.\d+\.\d+$")


if __name__ == "__main__":
    unittest.main()
