"""A data service's registry: announcing, waiting, keys, the end."""

import os
import socket
import tempfile
import threading
import time
import unittest
from multiprocessing import connection
from unittest import mock

from maypole.common import data_registry
from maypole.common.data_registry import Registry, RegistryClient


class DataRegistryTest(unittest.TestCase):

    def setUp(self):
        self.registry = Registry(2, 2, data_registry.new_key(), "127.0.0.1")
        self.addCleanup(self.registry.shutdown)
        self.client = self.new_client()

    def new_client(self, key=None):
        return RegistryClient(self.registry.addresses(),
                              key or self.registry.key)

    def test_a_dispatcher_is_found_by_those_who_wait(self):
        found = []
        thread = threading.Thread(target=lambda: found.append(
            self.new_client().wait_for_dispatcher_registration(1, 30)))
        thread.start()
        self.client.register_dispatcher(1, "grpc://127.0.0.1:5050")
        thread.join()
        self.assertEqual(found, ["grpc://127.0.0.1:5050"])
        self.client.register_dispatcher(1, "grpc://127.0.0.1:5050")  # again
        with self.assertRaisesRegex(ValueError, "is grpc://127.0.0.1:5050 already"):
            self.client.register_dispatcher(1, "grpc://127.0.0.1:1")
        with self.assertRaisesRegex(ValueError, "expected a number below 2"):
            self.client.register_dispatcher(2, "grpc://127.0.0.1:1")

    def test_workers_are_counted_once(self):
        wait = self.client.wait_for_dispatcher_worker_registration
        for worker in (4, 4):
            self.client.register_worker_for_dispatcher(0, worker)
        with self.assertRaisesRegex(TimeoutError, "the workers of dispatcher 0"):
            wait(0, timeout=0)
        self.client.register_worker_for_dispatcher(0, 5)
        wait(0, timeout=0)

    def test_a_dispatcher_that_does_not_come(self):
        with self.assertRaisesRegex(TimeoutError, "waited 0 s for dispatcher 0"):
            self.client.wait_for_dispatcher_registration(0, timeout=0)

    def test_another_key_is_refused(self):
        stranger = self.new_client(b"another")
        with self.assertRaisesRegex(ConnectionError, "cannot be reached"):
            stranger.register_dispatcher(0, "grpc://a:1")
        start = time.monotonic()
        with self.assertRaisesRegex(ConnectionError, "cannot be reached"):
            stranger.wait_for_dispatcher_registration(0, 300)
        self.assertLess(time.monotonic() - start, 60)  # it does not try again

    def test_those_who_wait_try_again(self):
        """Its port is closed at first, as when connections are refused."""
        listen = connection.Listener
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            address = closed.getsockname()
            client = RegistryClient({"any": [address]}, b"key")
            with self.assertRaisesRegex(ConnectionError, "refused"):
                client.wait_for_dispatcher_registration(0, 0.3)
            found = []
            threads = [threading.Thread(target=target) for target in (
                lambda: found.append(
                    client.wait_for_dispatcher_registration(0, 60)),
                client.wait_for_shutdown)]
            for thread in threads:
                thread.start()
            time.sleep(0.5)
            self.assertTrue(all(thread.is_alive() for thread in threads))
        with mock.patch.object(connection, "Listener",
                               lambda _, backlog: listen(address, None, backlog)):
            registry = Registry(1, 1, b"key", "127.0.0.1")
        self.addCleanup(registry.shutdown)
        client.register_dispatcher(0, "grpc://127.0.0.1:5050")
        threads[0].join(60)
        self.assertEqual(found, ["grpc://127.0.0.1:5050"])
        self.assertTrue(threads[1].is_alive())
        client.shutdown()
        threads[1].join(60)
        self.assertFalse(threads[1].is_alive())

    def test_a_silent_stranger_keeps_nobody_out(self):
        host = self.registry.addresses()["any"][0]
        with socket.create_connection(host):
            self.client.register_worker_for_dispatcher(0, 1)

    def assert_hung_up(self, stranger, seconds):
        """The registry ends the connection although `stranger` may still send."""
        stranger.settimeout(seconds)
        try:
            while stranger.recv(4096):
                pass
        except ConnectionResetError:
            pass

    def test_strangers_have_a_time_limit(self):
        address = self.registry.addresses()["any"][0]
        with mock.patch.object(data_registry, "_REQUEST_SECONDS", 0.3), \
                socket.create_connection(address) as silent, \
                socket.create_connection(address) as slow:

            def trickle():
                try:
                    while True:  # of an answer of 100 bytes
                        slow.sendall(b"\0")
                        time.sleep(0.1)
                except OSError:
                    pass

            slow.sendall(b"\0\0\0")
            thread = threading.Thread(target=trickle, daemon=True)
            thread.start()
            self.assert_hung_up(silent, 20)
            self.assert_hung_up(slow, 20)
            thread.join(20)
            self.assertFalse(thread.is_alive())
        # Who knows the key may wait for longer than that.
        with mock.patch.object(data_registry, "_REQUEST_SECONDS", 0.3):
            with self.assertRaises(TimeoutError):
                self.client.wait_for_dispatcher_registration(0, timeout=0)

    def test_strangers_are_limited_in_number(self):
        address = self.registry.addresses()["any"][0]
        with mock.patch.object(data_registry, "_MAX_CLIENTS", 2):
            strangers = [socket.create_connection(address) for _ in range(3)]
            self.assert_hung_up(strangers[2], 20)
        for stranger in strangers:
            stranger.close()
        self.client.register_dispatcher(0, "grpc://127.0.0.1:5050")

    def test_after_the_end_all_are_answered(self):
        self.client.register_dispatcher(1, "grpc://127.0.0.1:5050")
        for _ in range(2):
            self.client.shutdown()
            self.new_client().wait_for_shutdown()
        self.assertEqual(self.client.wait_for_dispatcher_registration(1, 30),
                         "grpc://127.0.0.1:5050")
        with self.assertRaisesRegex(ValueError, r"has ended \(shutdown\)"):
            self.client.wait_for_dispatcher_registration(0, 30)

    def test_the_end(self):
        thread = threading.Thread(target=self.new_client().wait_for_shutdown)
        thread.start()
        self.client.shutdown()
        thread.join(30)
        self.assertFalse(thread.is_alive())
        start = time.monotonic()
        self.registry.shutdown()
        self.assertLess(time.monotonic() - start, 5)
        with self.assertRaises(ConnectionError):
            self.client.register_worker_for_dispatcher(0, 1)
        with mock.patch.object(data_registry, "_GONE_SECONDS", 0.2):
            self.client.wait_for_shutdown()  # a registry that is gone has ended


class WritePrivateTest(unittest.TestCase):

    def test_files_of_others_are_not_used(self):
        """A secret must not come into a file that somebody else has made, who
        may have opened it."""
        with tempfile.TemporaryDirectory() as directory:
            secret = os.path.join(directory, "secret")
            # The second one: a name that can be guessed.
            others = [secret, f"{secret}.{os.getpid()}.new"]
            opened = []
            for name in others:
                opened.append(open(name, "w+", encoding="utf-8"))
                self.addCleanup(opened[-1].close)
                os.chmod(name, 0o666)
            data_registry.write_private(secret, "a key")
            with open(secret, encoding="utf-8") as file:
                self.assertEqual(file.read(), "a key")
            self.assertEqual(os.stat(secret).st_mode & 0o777, 0o600)
            self.assertEqual([file.read() for file in opened], ["", ""])
            self.assertEqual(len(os.listdir(directory)), 2)


if __name__ == "__main__":
    unittest.main()
