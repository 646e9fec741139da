"""maypolerun with the real daemons: behaviour that fakes cannot show."""
import os
import unittest

from client.launcher.testing.real_job import MEET, PYTHON, RealJobTestCase

# Ends by an exception while operations on its tensors wait for rank 0, which
# never submits them.
DIE = """
import os, time
import torch
import maypole.torch as hvd
hvd.init()
x = [torch.ones(n) for n in (1, 1000, 100000, 3000000)]
handles = [hvd.allreduce_async(t, name='out%d' % i) for i, t in enumerate(x)]
handles += [hvd.allreduce_async_(t, name='in%d' % i) for i, t in enumerate(x)]
handles += [hvd.allgather_async(t, 'all%d' % i) for i, t in enumerate(x)]
# All ranks have submitted before the first of them ends.
directory = os.environ['MEET_DIR']
open(os.path.join(directory, str(hvd.rank())), 'w').close()
while len(os.listdir(directory)) < 4:
    time.sleep(0.01)
raise ValueError('on purpose')
"""


class RealJobTest(RealJobTestCase):
    def test_a_private_directory_with_spaces(self):
        directory = os.path.join(self.dir, "my  tmp dir")
        os.mkdir(directory)
        rc, out, err = self.run_job("-np", "3", "--nodes", "2", PYTHON, "-c", MEET, TMPDIR=directory)
        self.assertEqual(rc, 0, err)
        self.assertEqual(sorted(out.splitlines()), ["[%d]<stdout>:met 3" % r for r in range(3)])
        self.assertEqual(os.listdir(directory), [])

    def test_an_exception_with_operations_pending_ends_in_status_1(self):
        for name, text in (("die.py", DIE), ("meet.py", MEET)):
            with open(os.path.join(self.dir, name), "w") as f:
                f.write(text)
        for job in range(5):  # 20 ranks die
            meeting = os.path.join(self.dir, "meeting.%d" % job)
            os.mkdir(meeting)
            rc, _, err = self.run_job(
                "-np", "5", "sh", "-c", "f=die; [ $MAYPOLE_RANK = 0 ] && f=meet; "
                "%s $TMPDIR/$f.py; echo $? >$TMPDIR/status.$MAYPOLE_RANK" % PYTHON,
                MEET_DIR=meeting)
            self.assertEqual(rc, 0, err)
            for rank in range(5):
                with open(os.path.join(self.dir, "status.%d" % rank)) as f:
                    self.assertEqual(f.read(), "1\n", err)
            self.assertEqual(err.count(">:ValueError: on purpose"), 4, err)

    def test_the_start_timeout_names_who_is_missing(self):
        rc, _, err = self.run_job("-np", "3", "--start-timeout", "1", PYTHON, "-c",
                                  "import os, time\nif os.environ['MAYPOLE_RANK'] == '1': time.sleep(100)\n" + MEET)
        self.assertEqual(rc, 1, err)
        for rank in (0, 2):
            self.assertRegex(err, r"(?m)^\[%d\]<stderr>:.*HorovodInternalError: .*rank.* 1\b" % rank)
        self.assertNotIn("see the agent's log", err)


if __name__ == "__main__":
    unittest.main()
