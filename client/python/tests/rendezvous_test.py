"""torchrun's store as libmaypole sees it, without a store."""

import datetime
import socket
import time
import unittest
from unittest import mock

from maypole.common import rendezvous

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "RANK": "0",
    "MASTER_ADDR": "n0",
    "MASTER_PORT": "29500",
}


class FakeStore:

    def __init__(self, error="Socket Timeout"):
        self.values = {}
        self.waited = []
        self.error = error

    def set(self, key, value):
        self.values[key] = value.encode()

    def wait(self, keys, timeout):
        self.waited.append(timeout)
        if keys[0] not in self.values:
            raise RuntimeError(self.error)

    def get(self, key):
        return self.values[key]


class NeededTest(unittest.TestCase):

    def test_only_torchruns_jobs_of_several_nodes(self):
        self.assertTrue(rendezvous.needed(TORCHRUN))
        self.assertFalse(rendezvous.needed({}))
        self.assertFalse(rendezvous.needed(dict(TORCHRUN,
                                                LOCAL_WORLD_SIZE="4")))
        # With explicit variables torch need not be imported.
        self.assertFalse(rendezvous.needed(dict(TORCHRUN, MAYPOLE_SIZE="4")))
        self.assertFalse(rendezvous.needed(dict(TORCHRUN, MAYPOLE_AGENT="/a")))


    def test_torchs_variables_without_torchrun(self):
        alike = {k: v for k, v in TORCHRUN.items() if k != "TORCHELASTIC_RUN_ID"}
        self.assertTrue(rendezvous.needed(alike))
        self.assertFalse(rendezvous.needed(dict(alike, OMPI_COMM_WORLD_SIZE="4")))
        self.assertFalse(rendezvous.needed(dict(alike, MASTER_ADDR="")))
        slurm = dict(alike, SLURM_STEP_ID="0", SLURM_STEP_NUM_TASKS="4")
        self.assertFalse(rendezvous.needed(slurm))
        self.assertTrue(rendezvous.needed(dict(slurm, SLURM_STEP_NUM_TASKS="1")))
        self.assertTrue(rendezvous.needed(dict(slurm, SLURM_STEP_ID="4294967290")))


class StoreTest(unittest.TestCase):

    def test_it_is_opened_once_and_when_it_is_needed(self):
        opened = []
        store = rendezvous.Store(lambda: opened.append(1) or FakeStore())
        self.assertEqual(opened, [])
        store.put("k", "v")
        self.assertEqual(store.get("k", 1500), "v")
        self.assertEqual(opened, [1])

    def test_a_timeout_is_no_error(self):
        for text in ("Socket Timeout", "wait timeout after 200ms, keys: /k",
                     "Timed out... timeout"):
            fake = FakeStore(text)
            self.assertIsNone(rendezvous.Store(lambda: fake).get("k", 200))
            self.assertEqual(fake.waited,
                             [datetime.timedelta(milliseconds=200)])

    def test_other_errors_are(self):
        store = rendezvous.Store(lambda: FakeStore("Connection reset by peer"))
        with self.assertRaisesRegex(RuntimeError, "reset by peer"):
            store.get("k", 200)


    def test_a_store_that_is_not_there_yet_is_waited_for(self):
        for error in (TimeoutError("The client socket has timed out after 1s"),
                      RuntimeError("The client socket has timed out after 1s"),
                      ConnectionRefusedError(111, "Connection refused")):
            fake = FakeStore()
            fake.set("k", "v")
            store = rendezvous.Store(mock.Mock(side_effect=[error, error, fake]))
            began = time.monotonic()
            self.assertIsNone(store.get("k", 30))
            self.assertEqual(store.why(), str(error))
            self.assertIsNone(store.get("k", 30))
            # A refusal comes at once, but a caller's loop must not spin.
            self.assertGreaterEqual(time.monotonic() - began, 0.06)
            self.assertEqual(store.get("k", 30), "v")

    def test_a_store_is_not_opened_before_somebody_listens(self):
        fake = FakeStore()
        open_store = mock.Mock(return_value=fake)
        look = mock.Mock(side_effect=[ConnectionError("refused"), None])
        store = rendezvous.Store(open_store, look)
        self.assertIsNone(store.get("k", 1))
        open_store.assert_not_called()
        self.assertEqual(store.why(), "refused")
        self.assertIsNone(store.get("k", 1))
        self.assertEqual(store.why(), "nobody has published it")
        fake.set("k", "v")
        self.assertEqual(store.get("k", 1), "v")
        self.assertEqual(look.call_count, 2)

    def test_what_will_not_change_is_an_error(self):
        for error in (ImportError("No module named 'torch'"),
                      OSError("libcudart.so: cannot open shared object file"),
                      ValueError("port"), TypeError("port"),
                      RuntimeError("Address already in use")):
            store = rendezvous.Store(mock.Mock(side_effect=error))
            with self.assertRaises(type(error)):
                store.get("k", 1)


class LookTest(unittest.TestCase):

    def look(self, port):
        rendezvous.look_for_torchruns(
            dict(TORCHRUN, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)))

    def test_who_listens_and_who_does_not(self):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
            with self.assertRaisesRegex(
                    ConnectionError, "store at 127.0.0.1:%d cannot.*refused" % port):
                self.look(port)
            listener.listen()
            self.look(port)

    def test_a_port_that_is_none(self):
        for port in ("70000", "0", "x"):
            with self.assertRaises(ValueError):
                self.look(port)


class OfferTest(unittest.TestCase):

    def setUp(self):
        self.addCleanup(setattr, rendezvous, "_offered", False)

    def test_once(self):
        library = mock.Mock()
        with mock.patch.dict("os.environ", TORCHRUN, clear=True):
            rendezvous.offer(library)
            rendezvous.offer(library)
        library.set_exchange.assert_called_once()

    def test_not_without_torchrun(self):
        library = mock.Mock()
        with mock.patch.dict("os.environ", {}, clear=True):
            rendezvous.offer(library)
        library.set_exchange.assert_not_called()

    def test_the_agents_store_or_rank_0s(self):
        for use_agent, rank, master in (("True", "0", False),
                                        ("False", "0", True), (None, "0", True),
                                        ("False", "1", False)):
            environ = dict(TORCHRUN, RANK=rank)
            if use_agent:
                environ["TORCHELASTIC_USE_AGENT_STORE"] = use_agent
            with mock.patch("torch.distributed.TCPStore") as tcp_store:
                rendezvous.open_torchruns(environ)
            self.assertEqual(tcp_store.call_args.args, ("n0", 29500))
            self.assertEqual(tcp_store.call_args.kwargs["is_master"], master)


if __name__ == "__main__":
    unittest.main()
