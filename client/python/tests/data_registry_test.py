"""A data service's registry: announcing, waiting, keys, the end."""

import socket
import threading
import time
import unittest

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
        with self.assertRaisesRegex(ConnectionError, "cannot be reached"):
            self.new_client(b"another").register_dispatcher(0, "grpc://a:1")

    def test_a_silent_stranger_keeps_nobody_out(self):
        host = self.registry.addresses()["any"][0]
        with socket.create_connection(host):
            self.client.register_worker_for_dispatcher(0, 1)

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
        self.client.wait_for_shutdown()  # a registry that is gone has ended


if __name__ == "__main__":
    unittest.main()
