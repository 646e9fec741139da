"""maypolerun with the real daemons: behaviour that fakes cannot show."""
import os
import re
import signal
import time
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


# Sums of new names, which the coordinator must order, until the file `go` is there.
SUM = """
import os
import torch
import maypole.torch as hvd
hvd.init()
directory = os.environ['MEET_DIR']
total = step = 0
end = False
while not end:
    step += 1
    total += hvd.allreduce(torch.ones(1) * (hvd.rank() + step), name='step%d' % step, op=hvd.Sum).item()
    if hvd.rank() == 0:
        with open(os.path.join(directory, 'part'), 'w') as f:
            f.write(str(step))
        os.rename(os.path.join(directory, 'part'), os.path.join(directory, 'step'))
    end = hvd.broadcast_object(os.path.exists(os.path.join(directory, 'go')), 0)
n = hvd.size()
assert total == n * step * (step + 1) / 2 + step * n * (n - 1) / 2, (total, step)
print('summed', step)
"""


# Ranks and their executor without free file descriptors, in turn. stop: limits the pid's descriptors.
DESCRIPTORS = """
import glob, os, resource
import torch
import maypole.torch as hvd
from maypole import _native
hvd.init()
library = _native.library()

def state():
    fd = os.memfd_create('state', os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096)
    import fcntl
    fcntl.fcntl(fd, 1033, 0x2 | 0x4)  # F_ADD_SEALS: shrink, grow
    return fd

def executor():
    for path in glob.glob('/proc/[0-9]*/cmdline'):
        try:
            with open(path) as command, open(os.path.dirname(path) + '/environ') as variables:
                if '\\0--executor' in command.read() and 'TMPDIR=%s\\0' % os.environ['TMPDIR'] in variables.read():
                    return int(path.split('/')[2])
        except OSError:
            pass

def refused(text, call):
    try:
        call()
    except _native.StatusError as error:
        assert text in str(error), error
    else:
        raise AssertionError('not refused')

def without_descriptors(pid, call):
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        call()
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)

hvd.allreduce(torch.ones(1), name='before')
if hvd.rank() == 0:
    memory = state()
    library.keep_state('s', memory)
    without_descriptors(0, lambda: refused('out of file descriptors', lambda: library.find_state('s')))
    found = library.find_state('s')
    assert os.fstat(found).st_size == 4096
    without_descriptors(executor(), lambda: refused('out of file descriptors', lambda: library.keep_state('t', memory)))
    library.keep_state('t', memory)
print('sum', hvd.allreduce(torch.ones(1), name='after', op=hvd.Sum).item())
"""


class RealJobTest(RealJobTestCase):
    def test_a_private_directory_with_spaces(self):
        directory = os.path.join(self.dir, "my  tmp dir")
        os.mkdir(directory)
        rc, out, err = self.run_job("-np", "3", "--nodes", "2", PYTHON, "-c", MEET, TMPDIR=directory)
        self.assertEqual(rc, 0, err)
        self.assertEqual(sorted(out.splitlines()), ["[%d]<stdout>:met 3" % r for r in range(3)])
        self.assertEqual(os.listdir(directory), [])

    def test_a_coordinator_that_is_killed_is_started_again_and_the_training_goes_on(self):
        def step():
            try:
                with open(os.path.join(self.dir, "step")) as f:
                    return int(f.read())
            except FileNotFoundError:
                return 0

        def await_step(least):
            deadline = time.monotonic() + 60
            while step() < least:
                self.assertIsNone(job.poll())
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)

        job = self.start("-np", "3", "--nodes", "2", PYTHON, "-c", SUM, MEET_DIR=self.dir)
        self.addCleanup(job.kill)
        for _ in range(2):
            await_step(step() + 20)
            (coordinator,) = self.processes("maypole-coordinator")
            os.kill(coordinator, signal.SIGKILL)
            await_step(step() + 20)  # a step may have begun before
        with open(os.path.join(self.dir, "go"), "w"):
            pass
        out, err = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 0, err)
        self.assertEqual(len(re.findall(r"<stdout>:summed \d+\n", out)), 3, out)
        self.assertEqual(err.count("was killed by signal 9 (Killed) and wrote nothing; another one is started"), 2, err)

    @unittest.skipIf(os.geteuid() != 0, "only root may limit the descriptors of the executor")
    def test_states_without_free_descriptors(self):
        rc, out, err = self.run_job("-np", "2", PYTHON, "-c", DESCRIPTORS)
        self.assertEqual(rc, 0, err)
        self.assertEqual(sorted(out.splitlines()), ["[%d]<stdout>:sum 2.0" % r for r in range(2)])

    def agent_and_executor(self):
        """The pids of the job's one agent and one executor. Until its exec the executor has the agent's command line."""
        deadline = time.monotonic() + 20
        while True:
            pids = self.processes("maypole-worker")
            executors = [pid for pid in pids if "--executor" in self.command_line(pid)]
            agents = [pid for pid in pids if pid not in executors]
            if len(agents) == len(executors) == 1:
                return agents[0], executors[0]
            self.assertLess(time.monotonic(), deadline, pids)
            time.sleep(0.01)

    def test_a_stopped_executor_and_a_stopped_agent_are_named(self):
        # Rank 1 comes when rank 0's agent or executor has been stopped.
        program = "import os, time\nif os.environ['MAYPOLE_RANK'] == '1':\n" \
                  "    while not os.path.exists(os.environ['MEET_DIR'] + '/go'): time.sleep(0.01)\n" + MEET
        for who, ranks, text in ((False, (0, 1), r"waited 3 s for the other 1 ranks of job \S+; the executor of this node does not "
                                                 r"answer \(agent \S+\): is it stopped\?"),
                                 (True, (1,), r"waited 3 s for the agent at \S+ \(pid %d\), which does not read what this rank "
                                              r"has sent: is it stopped\?")):
            job = self.start("-np", "2", "--start-timeout", "3", PYTHON, "-c", program, MEET_DIR=self.dir)
            agent, executor = self.agent_and_executor()
            stopped = agent if who else executor
            os.kill(stopped, signal.SIGSTOP)
            go = os.path.join(self.dir, "go")
            with open(go, "w"):
                pass
            _, err = job.communicate(timeout=60)
            self.assertEqual(job.returncode, 1, err)
            for rank in ranks:
                self.assertRegex(err, r"\[%d\]<stderr>:.*" % rank + (text % stopped if who else text))
            if not who:
                self.assertRegex(err, r"event=executor_stuck .*pid=%d .*stopped=true" % stopped)
            os.remove(go)

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
