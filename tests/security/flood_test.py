"""Clients without the secret flood the coordinator's ports: its memory and its log
stay small, a job's steps continue, and an operator gets answers."""

import contextlib
import os
import select
import shutil
import ssl
import struct
import subprocess
import tempfile
import threading
import time
import unittest

import cluster
import harness
from security_test import HTTP2, Running, connect

CTL = os.path.join(harness.ROOT, "client/ctl/maypolectl")
MAKE_CERTS = os.path.join(harness.ROOT, "deploy/make-certs.sh")
SECONDS = float(os.environ.get("MAYPOLE_FLOOD_SECONDS", "1"))  # of each attack
# What they may cost together; it was 2.7 GB.
MOST_BYTES = 64 << 20
MOST_LOG_BYTES = 64 << 10


# Frames of HTTP/2 (RFC 9113) and strings of HPACK (RFC 7541), without Huffman's code.
def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def integer(value, bits=7):
    most = (1 << bits) - 1
    if value < most:
        return bytes([value])
    value -= most
    out = [most]
    while value >= 128:
        out.append(128 | value & 127)
        value >>= 7
    return bytes(out + [value])


def field(name, value, index=False):
    """index: the receiver shall add it to its table."""
    return (b"\x40" if index else b"\0") + integer(len(name)) + name + integer(len(value)) + value


DATA, HEADERS, RST_STREAM, SETTINGS, PING, CONTINUATION = 0, 1, 3, 4, 6, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
HELLO = HTTP2 + frame(SETTINGS, 0, 0)


def call(index=False, path=b"/maypole.proto.Coordinator/Session", **more):
    """The headers of a call."""
    fields = ((b":path", path), (b":authority", b"x"), (b"content-type", b"application/grpc"), (b"te", b"trailers"),
              *((name.replace("_", "-").encode(), value) for name, value in more.items()))
    return b"\x83\x86" + b"".join(field(*f, index) for f in fields)


SAME_CALL = b"\x83\x86\xc1\xc0\xbf\xbe"  # from the table, after call(index=True)


def rapid_reset():
    """Streams that are opened and reset, without end (CVE-2023-44487)."""
    yield HELLO + frame(HEADERS, END_HEADERS | END_STREAM, 1, call(index=True))
    stream = 3
    while True:
        streams = range(stream, stream + 200, 2)
        stream += 200
        yield (b"".join(frame(HEADERS, END_HEADERS, s, SAME_CALL) for s in streams)
               + b"".join(frame(RST_STREAM, 0, s, struct.pack(">I", 8)) for s in streams))


def continuation():
    """Headers without end (CERT VU#421644)."""
    yield HELLO + frame(HEADERS, 0, 1, call())
    fields = b"".join(field(b"x-%d" % i, b"y" * 100) for i in range(140))
    while True:
        yield frame(CONTINUATION, 0, 1, fields)


def large_headers():
    """Calls whose headers are as long as a frame can be, and never whole."""
    yield HELLO + frame(HEADERS, END_HEADERS, 1, call() + field(b"x", b"y" * 16000))[:-1]
    while True:
        yield b""


def pings():
    yield HELLO
    while True:
        yield 500 * (frame(PING, 0, 0, b"12345678") + frame(SETTINGS, 0, 0))


def calls():
    """Calls without the secret, one after the other."""
    yield HELLO + frame(HEADERS, END_HEADERS | END_STREAM, 1, call())


def open_streams():
    """Streams that stay open, each with a message that never ends."""
    yield HELLO
    stream, headers = 1, call()
    while True:
        yield frame(HEADERS, END_HEADERS, stream, headers) + frame(DATA, 0, stream, b"\0\x00\x3f\xff\xff" + 8000 * b"x")
        stream += 2


def silence(first=HELLO):
    yield first
    while True:
        yield b""


def no_more():
    return silence(b"")


class Attack:
    """Threads that each begin again as soon as they are disconnected. `crowd`: connections
    of a thread that are open at a time."""

    def __init__(self, address, kind, threads=4, crowd=1, wrap=None, source="127.0.0.1"):
        self.address, self.kind, self.crowd, self.wrap, self.source = address, kind, crowd, wrap, source
        self.ends = threading.Event()
        self.connections = self.bytes = 0
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]
        for t in self.threads:
            t.start()

    def _run(self):
        held = []
        while not self.ends.is_set():
            try:
                s = connect(self.address, 2, self.source)
            except OSError:
                continue
            with self.lock:
                self.connections += 1
            held.append(s)
            if len(held) > self.crowd:
                held.pop(0).close()
            with contextlib.suppress(OSError):
                if self.wrap:
                    s = held[-1] = self.wrap(s)
                s.settimeout(2)
                for part in self.kind():
                    if self.ends.is_set() or (not part and self.crowd > 1):
                        break
                    if part:
                        s.sendall(part)
                    else:
                        self.ends.wait(0.01)
                    if not self.wrap and select.select([s], [], [], 0)[0] and not s.recv(1 << 20):
                        break
                    with self.lock:
                        self.bytes += len(part)
        for s in held:
            s.close()

    def end(self):
        self.ends.set()
        for t in self.threads:
            t.join(20)


def memory(pid):
    """(resident bytes, the most that there were)."""
    with open("/proc/%d/status" % pid) as f:
        fields = dict(line.split(":", 1) for line in f)
    return tuple(int(fields[name].split()[0]) << 10 for name in ("VmRSS", "VmHWM"))


def get_status(s, secret):
    """Makes a call, all of it at once; returns (type, flags) of the frames that come."""
    s.sendall(HELLO + frame(PING, 0, 0, b"12345678")
              + frame(HEADERS, END_HEADERS, 1, call(path=b"/maypole.proto.Admin/GetStatus", maypole_secret=secret))
              + frame(DATA, END_STREAM, 1, bytes(5)) + frame(SETTINGS, ACK, 0))
    stream, seen = s.makefile("rb"), []
    while (HEADERS, END_STREAM | END_HEADERS) not in seen:
        head = stream.read(9)
        assert len(head) == 9, "hung up after %s" % seen
        seen.append((head[3], head[4]))
        stream.read(int.from_bytes(head[:3], "big"))
        if seen[-1] == (SETTINGS, 0):
            s.sendall(frame(SETTINGS, ACK, 0))
    return seen


class FloodTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.certs = tempfile.mkdtemp(prefix="mpt", dir="/tmp")
        cls.addClassCleanup(shutil.rmtree, cls.certs, True)
        subprocess.run(["bash", MAKE_CERTS, cls.certs, "127.0.0.1"], check=True, capture_output=True)

    def flood(self, c, pid, meanwhile, *attacks):
        """Runs each attack for a while, and calls meanwhile() in it. Returns the bytes of memory and log that they cost."""
        before, log = memory(pid)[0], len(c.log("coordinator"))
        for start in attacks:
            attack = start()
            try:
                until = time.monotonic() + SECONDS
                meanwhile()
                while time.monotonic() < until:
                    time.sleep(0.05)
            finally:
                attack.end()
                now, most = memory(pid)
                print("%-14s %6d connections, %7.1f MB sent: %7.1f MB of memory more, %7.1f at most, %d bytes of log"
                      % (attack.kind.__name__, attack.connections, attack.bytes / 1e6, (now - before) / 1e6,
                         (most - before) / 1e6, len(c.log("coordinator")) - log), flush=True)
        return memory(pid)[1] - before, len(c.log("coordinator")) - log

    def check(self, cost):
        self.assertLess(cost[0], MOST_BYTES)
        self.assertLess(cost[1], MOST_LOG_BYTES)

    def ask(self, c, address, *flags):
        """As an operator."""
        asked = time.monotonic()
        said = subprocess.run([CTL, "--coordinator", address, *flags, "status"], capture_output=True, text=True,
                              timeout=60, env=harness.environment())
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertIn("job", said.stdout)
        self.assertLess(time.monotonic() - asked, 20)

    def test_a_stranger_costs_no_memory_and_no_step(self):
        with cluster.Cluster() as c:
            job = Running(c)

            def attack(kind, **kwargs):
                return lambda: Attack(job.address, kind, **kwargs)

            cost = self.flood(c, c.processes["coordinator"].pid, lambda: self.ask(c, job.address, job.flag),
                              attack(rapid_reset), attack(continuation), attack(pings), attack(open_streams), attack(calls),
                              attack(large_headers, crowd=200), attack(silence, crowd=200))
            job.check()
            self.assertLess(c.record(0)["slowest"], 5)
            self.check(cost)
            self.assertIn('event=unauthenticated peer=ipv4:127.0.0.1:', c.log("coordinator"))

    def test_a_client_that_waits_for_no_settings_is_served(self):
        with cluster.Cluster() as c:
            address = c.coordinator("--secret_file=" + c.secret("open sesame"))
            with connect(address) as s:
                seen = get_status(s, b"open sesame")
            self.assertEqual(seen.count((PING, ACK)), 1)
            self.assertEqual(seen.count((SETTINGS, 0)), 2)
            self.assertIn(DATA, [kind for kind, _ in seen])

    def tls(self, name):
        """The flags for one of the certificates."""
        return ["--tls_%s=%s/%s" % (key, self.certs, file) for key, file in
                (("ca", "ca.pem"), ("cert", name + ".pem"), ("key", name + ".key"))]

    def context(self):
        """Of a client without a certificate."""
        context = ssl.create_default_context(cafile=os.path.join(self.certs, "ca.pem"))
        context.set_alpn_protocols(["h2"])
        return context

    def half_a_handshake(self):
        """For Attack: a hello, and no more."""
        context = self.context()

        def wrap(s):
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            with contextlib.suppress(ssl.SSLWantReadError):
                context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1").do_handshake()
            s.sendall(outgoing.read())
            return s

        return wrap

    def operator(self, address):
        """A connection with an operator's certificate."""
        context = self.context()
        context.load_cert_chain(os.path.join(self.certs, "admin.pem"), os.path.join(self.certs, "admin.key"))
        return context.wrap_socket(connect(address), server_hostname="127.0.0.1")

    @unittest.skipIf(os.geteuid() != 0, "only root may count the coordinator's descriptors")
    def test_who_has_called_with_tls_is_no_stranger(self):
        with cluster.Cluster() as c, contextlib.ExitStack() as callers:
            address = c.coordinator("--secret_file=" + c.secret("open sesame"), *self.tls("coordinator"))

            def descriptors():
                return len(os.listdir("/proc/%d/fd" % c.processes["coordinator"].pid))

            def call_once():
                s = callers.enter_context(self.operator(address))
                self.assertIn((DATA, 0), get_status(s, b"open sesame"))

            call_once()  # gRPC opens some of its own
            before = descriptors()
            for _ in range(10):
                call_once()
            # The second descriptor of a stranger's connection is closed, long before a stranger's time is over.
            harness.wait_until(lambda: descriptors() <= before + 10, 2, "no descriptors of strangers")

    def test_a_crowd_of_the_callers_own_address(self):
        # Those who have called are none of it (test_who_has_called_with_tls_is_no_stranger). A new caller has to try again:
        # each of the 256 places becomes free once a second, and whoever comes next has it for as long.
        with cluster.Cluster() as c:
            secret = "--secret_file=" + c.secret("open sesame")
            address = c.coordinator(secret, *self.tls("coordinator"))
            crowd = Attack(address, no_more, crowd=400, wrap=self.half_a_handshake())
            try:
                harness.wait_until(lambda: "too many connections" in c.log("coordinator"), 20, "the crowd")
                until = time.monotonic() + SECONDS
                answered = False
                while time.monotonic() < until or not answered:
                    began = time.monotonic()
                    harness.wait_until(lambda: subprocess.run(
                        [CTL, "--coordinator", address, secret, *self.tls("admin"), "status"], capture_output=True,
                        timeout=60, env=harness.environment()).returncode == 0, 60, "an answer")
                    answered = True
                    print("an operator was answered after %.2f s" % (time.monotonic() - began), flush=True)
            finally:
                crowd.end()

    def test_with_tls_neither(self):
        context = self.context()

        def no_certificate(s):
            s.settimeout(2)
            return context.wrap_socket(s, server_hostname="127.0.0.1")

        with cluster.Cluster() as c:
            secret = "--secret_file=" + c.secret()
            address = c.coordinator(secret, *self.tls("coordinator"))

            # (A handshake takes long enough for a crowd of the same address to displace it.)
            def attack(kind, **kwargs):
                return lambda: Attack(address, kind, source="127.0.0.2", **kwargs)

            def ask():
                self.ask(c, address, secret, *self.tls("admin"))

            ask()
            cost = self.flood(c, c.processes["coordinator"].pid, ask, attack(rapid_reset, wrap=no_certificate),
                              attack(continuation), attack(no_more, crowd=400, wrap=self.half_a_handshake()))
            self.check(cost)


if __name__ == "__main__":
    unittest.main()
