"""Clients and daemons without a common version give one line that names both ranges. And all files name the same version.

tests/upgrade tests clients and daemons that have a common version.
"""

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
# These never change (common/wire/session_messages.h).
HEADER = struct.Struct("@IIII")  # magic, version, type, size
RANK_AT, NEWEST_AT = 16, 100     # in Hello


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


def versions_of(hello):
    """(oldest, newest) that a client speaks."""
    return HEADER.unpack_from(hello)[1], struct.unpack_from("@I", hello, NEWEST_AT)[0]


def hello_of(oldest, newest, size):
    payload = bytearray(size)
    struct.pack_into("@i", payload, RANK_AT - HEADER.size, 3)
    struct.pack_into("@I", payload, NEWEST_AT - HEADER.size, newest)
    return message(oldest, HELLO, bytes(payload))


class VersionsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        hello, _ = run_client(lambda hello: message(versions_of(hello)[0], REFUSED,
                                                    b"\0" * (REFUSED_BYTES - HEADER.size)))
        cls.oldest, cls.newest = versions_of(hello)
        assert cls.oldest == cls.newest, "a range reads otherwise"
        cls.ours = "protocol version %d" % cls.newest

    def check_client(self, oldest, newest, size, expected):
        """What the real agent answers to a Hello of other versions."""
        with daemons.Daemons(1) as d:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
                client.settimeout(10)
                client.connect(d.sockets[0])
                client.send(hello_of(oldest, newest, size))
                answer = client.recv(4096)
            log = d.log()
        magic, said, kind, length = HEADER.unpack_from(answer)
        # In the version in which the client has spoken.
        self.assertEqual((magic, said, kind, length), (MAGIC, oldest, REFUSED, len(answer)))
        text = answer[HEADER.size + 8:].split(b"\0")[0].decode()
        self.assertEqual(text, expected)
        # The operator's events show it, too.
        self.assertEqual(len([line for line in log.splitlines() if text in line]), 1, log)
        print(text)

    def test_older_client(self):
        self.check_client(self.oldest - 1, self.oldest - 1, 300,
                          "libmaypole of rank 3 speaks protocol version %d, but maypole-worker on node n0 speaks %s; "
                          "upgrade libmaypole of rank 3" % (self.oldest - 1, self.ours))

    def test_newer_client_with_other_structs(self):
        self.check_client(self.newest + 1, self.newest + 6, 1500,
                          "maypole-worker on node n0 speaks %s, but libmaypole of rank 3 speaks protocol versions %d to "
                          "%d; upgrade maypole-worker on node n0" % (self.ours, self.newest + 1, self.newest + 6))

    def check_agent(self, version, expected):
        _, done = run_client(lambda _: message(version, REFUSED, b"\0" * 40))
        self.assertEqual(done.returncode, 1)
        last = done.stderr.splitlines()[-1]
        self.assertIn(expected, last)
        print(last)

    def test_older_agent(self):
        self.check_agent(self.oldest - 1, "the agent speaks protocol version %d, but this libmaypole speaks %s; upgrade "
                                          "the agent" % (self.oldest - 1, self.ours))

    def test_newer_agent(self):
        self.check_agent(self.newest + 6, "this libmaypole speaks %s, but the agent speaks protocol version %d; upgrade "
                                          "this libmaypole" % (self.ours, self.newest + 6))

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
