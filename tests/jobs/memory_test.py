"""How much memory a job uses on a node: checks docs/memory.md with real jobs."""

import os
import re
import resource
import subprocess
import sys
import unittest
import urllib.request

import daemons
import harness

KIB, MIB = 1 << 10, 1 << 20
RESOURCE_EXHAUSTED = 8


def board_bytes(local_size, size=None, nodes=1, chunk_bytes=1024 * KIB, ring_depth=2, slots=16384, names=1):
    """The formula of docs/memory.md."""

    def pages(n):
        return (n + 4095) // 4096 * 4096

    k, n, runs = local_size, size or local_size, 256
    plan = (64 + 512 * 16 + 8 * n + 63) // 64 * 64
    matrices = 2 * 8 * min(n, 1024) ** 2 if nodes > 1 else 0
    return (pages(2624) + pages(832 * k) + pages(65536 * 8 + slots // 8) +
            (names + 63) // 64 * 64 * (1856 + 448 * k) +
            pages(runs * (64 + 64 * k)) + pages(runs * plan) +
            pages(2 * min(slots, 512) * k * n * 8) + pages(matrices) +
            k * 32 * 64 * KIB + (k + 1) * ring_depth * chunk_bytes)


class Board:
    """The board that a rank has mapped, inspected through its descriptor."""

    def __init__(self, pid):
        self.pid = pid
        self.path = next(path for path, link in memfds(pid) if "maypole-board" in link)
        self.inode = os.stat(self.path).st_ino

    def taken(self):
        return os.stat(self.path).st_blocks * 512

    def size(self):
        return os.stat(self.path).st_size

    def pss(self):
        """Bytes that the rank has touched, each shared one divided by its users."""
        total, ours = 0, False
        with open("/proc/%d/smaps" % self.pid) as f:
            for line in f:
                if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                    ours = "memfd:maypole-board" in line
                elif ours and line.startswith("Pss:"):
                    total += int(line.split()[1]) * KIB
        return total

    def users(self):
        """Processes that still hold this memory by a descriptor or mapping."""
        found = set()
        for pid in harness.processes():
            if any(inode_of(path) == self.inode for path, _ in memfds(pid)):
                found.add(pid)
            try:
                with open("/proc/%d/maps" % pid) as f:
                    if any("memfd:maypole" in line and line.split()[4] == str(self.inode) for line in f):
                        found.add(pid)
            except OSError:
                pass
        return found


def inode_of(path):
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


def memfds(pid):
    """(path, link) of the process's descriptors of Maypole's memory."""
    found = []
    try:
        for fd in os.listdir("/proc/%d/fd" % pid):
            path = "/proc/%d/fd/%s" % (pid, fd)
            try:
                link = os.readlink(path)
            except OSError:
                continue
            if link.startswith("/memfd:maypole"):
                found.append((path, link))
    except OSError:
        pass
    return found


def private_bytes(pid):
    with open("/proc/%d/status" % pid) as f:
        return next(int(line.split()[1]) for line in f if line.startswith("RssAnon:")) * KIB


def metric(address, name):
    with urllib.request.urlopen("http://%s/metrics" % address, timeout=5) as reply:
        text = reply.read().decode()
    return [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + "{")]


class OwnDaemonsJob:
    """A job of one node on daemons with the test's own flags."""

    def __init__(self, d, np, args=(), job="memory"):
        self.dir, self.np = d.dir, np
        self.ranks = []
        for r in range(np):
            env = {"MAYPOLE_RANK": str(r), "MAYPOLE_SIZE": str(np), "MAYPOLE_LOCAL_RANK": str(r),
                   "MAYPOLE_LOCAL_SIZE": str(np), "MAYPOLE_JOB": job, "MAYPOLE_TOKEN": "t",
                   "MAYPOLE_AGENT": d.sockets[0], "MAYPOLE_TEST_DIR": d.dir}
            self.ranks.append(subprocess.Popen(
                [harness.PYTHON, os.path.join(harness.ROOT, "tests/programs/memory.py")] + [str(a) for a in args],
                env=harness.environment(env), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))

    await_file, touch = harness.Job.await_file, harness.Job.touch
    record, records = harness.Job.record, harness.Job.records

    @property
    def process(self):  # for await_file: no rank ends before the test says so
        return next((r for r in self.ranks if r.poll() is not None), self.ranks[0])

    def reach(self, stage):
        for r in range(self.np):
            self.await_file("%s.%d" % (stage, r))

    def __enter__(self):
        return self

    def end(self):
        """Ends the job; returns the ranks' statuses and their stderr."""
        texts = [r.communicate(timeout=60)[1] for r in self.ranks]
        return [r.returncode for r in self.ranks], texts

    def __exit__(self, kind, value, trace):
        for r in self.ranks:
            if r.poll() is None:
                r.kill()
                r.wait()
            if kind is not None and not r.stderr.closed:
                sys.stderr.write(r.stderr.read())
            r.stderr.close()


class MemoryTest(unittest.TestCase):
    def check_default(self, np, nodes=1):
        local = np // nodes
        want = board_bytes(local, np, nodes)
        with harness.Job(np=np, nodes=nodes, program="memory.py") as job:
            for r in range(np):
                job.await_file("used.%d" % r)
            boards = [Board(job.rank_pid(r)) for r in range(np)]
            self.assertEqual(len({b.inode for b in boards}), nodes)
            for board in boards:
                self.assertEqual(board.taken(), want)
                unused = board_bytes(local, np, nodes, names=16384) - want
                self.assertEqual(board.size(), want + unused + local * (8 << 30))
            harness.wait_until(lambda: metric(job.endpoints()["node0"], "maypole_board_bytes") == [want],
                               5, "the metric")
            pss = [board.pss() for board in boards]
            print("%d ranks, %d nodes: board %.1f MiB, ranks' shares of it %s MiB" % (
                np, nodes, want / MIB, ["%.1f" % (p / MIB) for p in pss]), flush=True)
            print("private: executor %.1f MiB, agent %.1f MiB" % tuple(
                private_bytes(pids[0]) / MIB for pids in (job.executors(), job.daemons("maypole-worker"))), flush=True)
            self.assertLessEqual(sum(pss), nodes * want)
            job.touch("end")
            job.check_ok(60)
            for board in boards:
                self.assertEqual(board.users(), set())

    def test_two_ranks(self):
        self.check_default(2)

    def test_four_ranks(self):
        self.check_default(4)

    def test_eight_ranks(self):
        self.check_default(8)

    def test_two_nodes_of_two_ranks(self):
        self.check_default(4, nodes=2)

    def check_flags(self, **flags):
        with daemons.Daemons(1, ["--%s=%d" % f for f in flags.items()]) as d:
            with OwnDaemonsJob(d, 2) as job:
                job.reach("used")
                board = Board(job.ranks[0].pid)
                self.assertEqual(board.taken(), board_bytes(2, **flags))
                job.touch("end")
                self.assertEqual(job.end()[0], [0, 0])
                harness.wait_until(lambda: not board.users(), 5, "the executor to drop the board")

    def test_flags_of_the_rings(self):
        self.check_flags(chunk_bytes=64 * KIB, ring_depth=4)

    def test_flag_of_the_names(self):
        self.check_flags(slots=64)

    # Names take memory as they come, 64 at a time.
    def test_many_names(self):
        with harness.Job(np=2, program="many_names.py", args=[1000, 1]) as job:
            for r in range(2):
                job.await_file("done.%d" % r)
            board = Board(job.rank_pid(0))
            self.assertEqual(board.taken(), board_bytes(2, names=1000))
            job.touch("end")
            job.check_ok(60)

    def test_full_arena(self):
        tensor, limit = MIB, 10 * MIB
        with daemons.Daemons(1, ["--arena_bytes=%d" % limit]) as d:
            with OwnDaemonsJob(d, 2, args=[tensor]) as job:
                job.reach("used")
                board = Board(job.ranks[0].pid)
                self.assertEqual(board.taken(), board_bytes(2))
                self.assertEqual(board.size(), board_bytes(2, names=16384) + 2 * limit)
                job.touch("fill")
                job.reach("full")
                self.assertEqual(board.taken(), board_bytes(2) + 2 * limit)
                job.touch("free")
                job.reach("freed")
                self.assertEqual(board.taken(), board_bytes(2))
                job.touch("end")
                self.assertEqual(job.end()[0], [0, 0])
                for record in job.records():
                    self.assertEqual(record["tensors"], limit // tensor)
                    self.assertEqual(record["code"], RESOURCE_EXHAUSTED)
                    self.assertIn("this rank's arena has no room for 1048576 bytes: 10485760 of 10485760 bytes "
                                  "are in use (raise --arena_bytes of the agent)", record["text"])
                harness.wait_until(lambda: not board.users(), 5, "the executor to drop the board")

    # Under ulimit -v a rank has a smaller arena, and the job runs as it does
    # without a limit.
    def test_limit_of_address_space(self):
        limit = ["sh", "-c", 'ulimit -v %d && exec "$@"' % (20 << 20), "sh"]
        with harness.Job(np=2, program="limited.py", prefix=limit) as job:
            job.check_ok(60)
            records = job.records()
            stderr = job.stderr()
        for record in records:
            self.assertGreaterEqual(record["limit"], 1 << 30)
            self.assertLess(record["limit"], 8 << 30)
            self.assertEqual(record["sum"], 3.0)
            self.assertEqual(record["in_arena"], 1)
            self.assertIn("(the limit of address space leaves no more: raise ulimit -v)", record["text"])
        self.assertEqual(stderr, "")

    # The rank on the other node reads why, too.
    def test_no_memory_for_a_result(self):
        with harness.Job(np=2, nodes=2, program="no_room.py", args=[1]) as job:
            job.check_ok(60)
            errors = [record["error"] for record in job.records()]
        why = "allgather 'large': no memory for a result of %d bytes" % (128 * MIB)
        self.assertIn(why, errors[1])
        self.assertRegex(errors[0], r"rank 1 \(node .*\) was lost: it has left with 1 operation pending: " + why)

    # As if the machine had no memory for the board: the ranks get a line that
    # says what to do, the agent lives, and the next job runs.
    def test_no_memory_for_the_board(self):
        with daemons.Daemons(1) as d:
            worker = d.workers[0]
            _, hard = resource.prlimit(worker, resource.RLIMIT_FSIZE)
            resource.prlimit(worker, resource.RLIMIT_FSIZE, (MIB, hard))
            with OwnDaemonsJob(d, 2) as job:
                statuses, texts = job.end()
            self.assertEqual(statuses, [1, 1])
            for text in texts:
                self.assertRegex(text, r"node n0 \(host .*\) cannot make the job's shared memory: cannot make a board "
                                       r"of \d+ bytes, .*ulimit -f.*--arena_bytes")
            self.assertTrue(harness.alive(worker))
            print(texts[0].strip().splitlines()[-1], flush=True)
            resource.prlimit(worker, resource.RLIMIT_FSIZE, (hard, hard))
            with OwnDaemonsJob(d, 2, job="next") as job:
                job.reach("used")
                job.touch("end")
                self.assertEqual(job.end()[0], [0, 0])


if __name__ == "__main__":
    unittest.main()
