"""torchrun's store as libmaypole sees it, without a store."""

import datetime
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
        # Who says it explicitly is not asked to import torch.
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
