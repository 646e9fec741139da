"""maypole.common.elastic_driver: each event and each action passes through C as it is.

The policy's own tests are client/launcher/elastic/elastic_driver_test.cc.
"""

import signal
import unittest

from maypole.common.elastic_driver import Action, ElasticDriver


class ElasticDriverTest(unittest.TestCase):

    def two_hosts(self, least=2, most=None, reset_limit=None, cooldown=(1, 60), patience=600):
        """Hosts a and b with two slots each; processes 0 and 1 run on a, 2 and 3 on b."""
        driver = ElasticDriver(4, least, most, reset_limit, cooldown, patience)
        self.assertEqual(driver.on_hosts({"a": 2, "b": 2}, 0.0), [Action("start_node", 0, text="a"),
                                                                  Action("start_node", 1, text="b")])
        self.assertEqual(driver.on_node_ready(0, 0.0), [])
        self.assertEqual(driver.on_node_ready(1, 0.0), [Action("start_process", process // 2, process, process % 2)
                                                        for process in range(4)])
        self.assertEqual((driver.running(), driver.finishing()), (4, False))
        return driver

    def test_a_failure_and_its_cool_down(self):
        driver = self.two_hosts(cooldown=(0.25, 60))
        (tell,) = driver.on_process_end(1, -signal.SIGKILL, False, "died: \0é", 100.0)
        self.assertEqual(tell, Action("tell", text="process 1 (host a) died:  é; the job goes on, and host a gets a new "
                                                   "process in 0.25 s"))
        self.assertEqual(driver.on_time(100.24), [])
        self.assertEqual(driver.on_time(100.25), [Action("start_process", 0, 4, 1)])

    def test_a_host_that_goes(self):
        driver = self.two_hosts()
        tell, *asked = driver.on_hosts({"a": 2}, 10.0)
        self.assertRegex(tell.text, "^host b is not listed any more")
        self.assertEqual(asked, [Action("signal_process", process=2, value=signal.SIGTERM),
                                 Action("signal_process", process=3, value=signal.SIGTERM)])
        self.assertEqual(driver.on_time(40.0), [Action("signal_process", process=2, value=signal.SIGKILL),
                                                Action("signal_process", process=3, value=signal.SIGKILL)])
        self.assertEqual(driver.on_process_end(2, -signal.SIGKILL, False, "", 41.0), [])
        self.assertEqual(driver.on_process_end(3, 0, False, "", 41.0), [Action("stop_node", 1)])

    def test_a_lost_node(self):
        driver = self.two_hosts(reset_limit=1)
        (tell,) = driver.on_node_lost(1, "no route", 100.0)
        self.assertEqual(tell.text, "host b: no route; the job goes on, and host b gets a new process in 1 s")
        self.assertEqual(driver.running(), 2)
        self.assertEqual(driver.on_hosts({"a": 2}, 100.5), [])  # its loss was counted
        self.assertEqual(driver.on_process_end(0, 3, False, "exited", 101.0), [Action(
            "end_badly", text="process 0 (host a) exited; that is change 2 of the job's processes, and reset_limit is 1")])

    def test_the_end(self):
        driver = self.two_hosts()
        self.assertEqual(driver.on_process_end(0, 0, False, "", 100.0), [])
        self.assertTrue(driver.finishing())
        self.assertEqual([action.process for action in driver.on_time(105.0)], [1, 2, 3])
        failed, tell = driver.on_process_end(1, 143, False, "left", 106.0)
        self.assertEqual(failed, Action("process_failed", process=1))
        self.assertIn("process 1 (host a) was still training 5 s after another process had trained to the end", tell.text)
        self.assertEqual(driver.on_process_end(2, 1, False, "failed", 106.0), [Action("process_failed", process=2)])
        self.assertEqual(driver.running(), 1)

    def test_a_node_that_is_lost_at_the_end(self):
        driver = self.two_hosts()
        driver.on_process_end(0, 0, False, "", 100.0)
        self.assertEqual(driver.on_node_lost(1, "gone", 101.0), [Action(
            "end_badly", text="host b: gone; its processes had not finished")])

    def test_a_failure_after_the_training(self):
        driver = self.two_hosts()
        self.assertEqual(driver.on_process_end(3, 1, True, "failed", 100.0), [Action("process_failed", process=3)])
        self.assertTrue(driver.finishing())

    def test_too_few_slots(self):
        driver = self.two_hosts(least=3, patience=50, most=4)
        driver.on_node_lost(1, "gone", 100.0)
        driver.on_hosts({"a": 2}, 100.0)
        self.assertEqual(driver.on_time(149.9), [])
        self.assertEqual(driver.on_time(150.0), [Action(
            "end_badly", text="only 2 of at least 3 processes could run for 50 s (elastic_timeout)")])


if __name__ == "__main__":
    unittest.main()
