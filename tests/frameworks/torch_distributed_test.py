"""torch.distributed on Maypole: every operation, errors and launchers, with the newest torch of PyPI.

--long adds torchrun, three ranks, two nodes, more errors, deaths that a job survives, older versions of torch, and the
wheel, whose backend torch finds itself.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import harness
import installed
import machines
import pypi_torch
import ssh_fixture

DIRECTORY = tempfile.mkdtemp(prefix="mpd", dir="/tmp")
PROGRAMS = os.path.join(harness.ROOT, "tests", "programs", "torch_distributed")
LONG = "--long" in sys.argv
# The least that collectives.py compares.
OPERATIONS = 1000
# The oldest one, and one in the middle.
OLDER = ("2.1.2", "2.6.0")


def setUpModule():
    unittest.addModuleCleanup(shutil.rmtree, DIRECTORY)
    os.chmod(DIRECTORY, 0o755)
    harness.PYTHON = pypi_torch.environment(os.path.join(DIRECTORY, "env"))


class TorchDistributedTest(unittest.TestCase):
    def run_program(self, np, nodes, program, args=()):
        with harness.Job(np=np, nodes=nodes, program="torch_distributed/" + program, args=args) as job:
            job.check_ok(300)
            return job.stdout()

    def check_collectives(self, out):
        equal = [line for line in out.splitlines() if "equal: " in line]
        self.assertEqual(len(equal), 1, out)
        self.assertGreaterEqual(int(equal[0].split("equal: ")[1].split()[0]), OPERATIONS)

    def test_every_operation_equals_gloos(self):
        self.check_collectives(self.run_program(2, 1, "collectives.py"))

    def test_groups_dtypes_and_receives(self):
        """On three ranks: receives from any rank have several to choose from."""
        out = self.run_program(3, 1, "groups.py")
        self.assertIn("right: maypole.torch; any source; strangers; sparse; dtypes; many groups; under way; sizes; default device; ranks; short forms; inference; futures; two stages; join; order; split; several backends; under Gloo; again",
                      out)

    def test_what_is_left_over_reaches_no_later_call(self):
        self.assertIn("right: left over", self.run_program(3, 1, "left_over.py"))

    @unittest.skipUnless(LONG, "with --all")
    def test_the_same_over_nodes(self):
        self.assertIn("right: left over", self.run_program(4, 2, "left_over.py"))
        self.assertIn("right: maypole.torch; any source", self.run_program(4, 2, "groups.py"))

    @unittest.skipUnless(LONG, "with --all")
    @unittest.skipIf(ssh_fixture.available(), ssh_fixture.available())
    def test_machines_with_ipv6_alone(self):
        """The store's address, and the ports for receives from any rank."""
        with ssh_fixture.SshMachines(addresses=[[a] for a in machines.V6]) as net:
            job = net.start(["-H", "a:2,b:2", harness.PYTHON, os.path.join(PROGRAMS, "groups.py")])
            self.assertEqual(job.wait(300), 0, job.stderr())
            self.assertIn("right: maypole.torch; any source", job.stdout())

    def torchrun(self, program, *args, options=()):
        env = harness.environment({"MAYPOLE_RUNTIME_DIR": DIRECTORY, "TMPDIR": DIRECTORY})
        done = subprocess.run([harness.PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port",
                               "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", *options,
                               os.path.join(PROGRAMS, program), *args], env=env, cwd=DIRECTORY, capture_output=True,
                              text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        return done.stdout

    @unittest.skipUnless(LONG, "with --all")
    def test_started_by_torchrun(self):
        self.check_collectives(self.torchrun("collectives.py"))

    @unittest.skipUnless(LONG, "with --all")
    def test_torchrun_starts_the_ranks_again(self):
        kept = tempfile.mkdtemp(dir=DIRECTORY)
        # The sum over steps, ranks and elements of step + rank.
        self.assertIn("trained: 8 after 1 restarts, sum 192", self.torchrun("restarts.py", kept,
                                                                            options=["--max-restarts", "2"]))

    @unittest.skipUnless(LONG, "with --all")
    def test_older_versions(self):
        newest = harness.PYTHON
        self.addCleanup(setattr, harness, "PYTHON", newest)
        for version in OLDER:
            with self.subTest(version=version):
                harness.PYTHON = pypi_torch.environment(os.path.join(DIRECTORY, "env-" + version), version=version)
                self.check_collectives(self.run_program(2, 1, "collectives.py"))
                self.assertIn("DDP; DDP, find_unused_parameters", self.run_program(
                    2, 1, "programs.py", ["DDP", "DDP, find_unused_parameters", "DDP, small buckets", "DDP, join"]))
                self.assertIn("right: maypole.torch; any source; strangers; sparse; dtypes; many groups; under way; default device; inference; futures; several backends; again",
                              self.run_program(2, 1, "groups.py"))
                self.assertIn("trained: 8 after 1 restarts, sum 192", self.torchrun(
                    "restarts.py", tempfile.mkdtemp(dir=DIRECTORY), options=["--max-restarts", "2"]))

    def test_importing_it_imports_no_compiler(self):
        """Which takes seconds, and which torch itself imports when it is needed."""
        done = subprocess.run([harness.PYTHON, "-c", "import sys, maypole.torch, maypole.torch.distributed; "
                               "print('torch' in sys.modules, 'torch._dynamo' in sys.modules)"],
                              env=harness.environment(), capture_output=True, text=True, timeout=120)
        self.assertEqual(done.stdout, "True False\n", done.stderr)

    def test_versions_that_are_too_old_are_one_line(self):
        done = subprocess.run(["/usr/bin/python3", "-c", "import maypole.torch.distributed"], env=harness.environment(),
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr.splitlines()[-1],
                         r"^ImportError: maypole\.torch\.distributed needs torch 2\.1 or newer with torch\.distributed; "
                         r"this is torch 1\.")

    # --- Deaths that a job survives -------------------------------------------

    def elastic(self, np, min_np, program, *args):
        """Runs an elastic job on this host; returns its status, its output and its directory."""
        directory = tempfile.mkdtemp(dir=DIRECTORY)
        env = harness.environment({"MAYPOLE_TEST_DIR": directory, "TMPDIR": directory})
        with open(os.path.join(directory, "out"), "w+b") as out:
            process = subprocess.Popen([os.path.join(harness.ROOT, harness.PROGRAMS[0]), "-np", str(np), "--min-np",
                                        str(min_np), harness.PYTHON, os.path.join(PROGRAMS, program), *args], env=env,
                                       cwd=directory, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
            try:
                status = process.wait(timeout=300)
            finally:
                harness.end(process)
            out.seek(0)
            return status, out.read().decode(), directory

    def test_ddp_in_an_elastic_function_outlives_a_death(self):
        status, out, _ = self.elastic(2, 2, "elastic_ddp.py")
        self.assertEqual(status, 0, out[-6000:])
        for rank in range(2):
            self.assertIn(f"rank {rank} of 2: equal to one process", out)
        self.assertRegex(out, r"maypole: .*rank 1 .*died.*; continuing from the last commit")

    @unittest.skipUnless(LONG, "with --all")
    def test_a_death_before_the_others_have_connected_to_the_store(self):
        status, out, _ = self.elastic(2, 2, "elastic_ddp.py", "store")
        self.assertEqual(status, 0, out[-6000:])
        for rank in range(2):
            self.assertIn(f"rank {rank} of 2: equal to one process", out)

    @unittest.skipUnless(LONG, "with --all")
    def test_a_group_from_before_an_elastic_function_is_an_error(self):
        status, out, _ = self.elastic(2, 2, "elastic_ddp.py", "outside")
        self.assertNotEqual(status, 0, out)
        self.assertIn("ValueError: elastic.run: torch.distributed's default group ends with each membership epoch", out)

    def survivors(self, how):
        status, out, directory = self.elastic(3, 2, "survive.py", how)
        self.assertEqual(status, 0, out[-6000:])
        records = []
        for rank in range(2 + (how == "abort")):
            with open(os.path.join(directory, "rank.%d.json" % rank), encoding="utf-8") as f:
                records.append(json.load(f))
        return records

    def check_survivors(self, records):
        for record in records:
            self.assertEqual(record["sums"], [6.0] * 3)
            self.assertEqual(record["after"], [3.0] * 4)
            self.assertRegex(record["error"], r"group 'world'.*rank \d \(pid \d+.*died")
            self.assertLess(record["seconds"], 1)
            self.assertEqual((record["size"], record["received"]), (2, 1.0))
        self.assertEqual(sorted(record["rank"] for record in records), [0, 1])

    def test_a_group_shrinks_after_a_death(self):
        self.check_survivors(self.survivors("shrink"))

    @unittest.skipUnless(LONG, "with --all")
    def test_a_group_is_made_again_after_a_death(self):
        self.check_survivors(self.survivors("again"))

    @unittest.skipUnless(LONG, "with --all")
    def test_a_group_is_reconfigured_after_a_death(self):
        self.check_survivors(self.survivors("reconfigure"))

    @unittest.skipUnless(LONG, "with --all")
    def test_an_abort_ends_what_waits(self):
        for rank, record in enumerate(self.survivors("abort")):
            self.assertEqual((record["sums"], record["after"]), ([6.0] * 3, [6.0]))
            if rank < 2:
                self.assertIn("all_reduce, call 3 of group 'world'", record["error"])

    @unittest.skipUnless(LONG, "with --all")
    def test_the_same_of_three_ranks_and_over_nodes(self):
        for np, nodes in ((3, 1), (4, 2), (3, 2)):
            with self.subTest(np=np, nodes=nodes):
                self.check_collectives(self.run_program(np, nodes, "collectives.py"))

    @unittest.skipUnless(LONG, "with --all")
    def test_torch_finds_the_backend_of_the_wheel(self):
        path = os.path.join(DIRECTORY, "wheel")
        pypi_torch.environment(path)
        installed.Environment(path).pip("install", "--no-index", "--no-deps", installed.make_wheel(DIRECTORY))
        code = ("import sys, torch, torch.distributed as dist; dist.init_process_group('maypole'); "
                "tensor = torch.ones(3); dist.all_reduce(tensor); print('sum', tensor.tolist()); "
                "dist.destroy_process_group()")
        done = subprocess.run([path + "/bin/maypolerun", "-np", "2", path + "/bin/python", "-c", code], env={}, cwd="/",
                              capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("sum [2.0, 2.0, 2.0]"), 2, done.stdout)
        # It costs who only imports torch nothing.
        done = subprocess.run([path + "/bin/python", "-c", "import torch, sys; print('maypole' in sys.modules)"], env={},
                              cwd="/", capture_output=True, text=True, timeout=120)
        self.assertEqual(done.stdout.strip(), "False", done.stderr)

    # --- Errors ---------------------------------------------------------------

    def errors(self, what, np=3, **env):
        with harness.Job(np=np, program="torch_distributed/errors.py", args=[what], env=env) as job:
            job.wait(120)
            return [job.record(rank) for rank in range(np - 1 if what.endswith("death") else np)]

    def test_calls_that_differ_are_named(self):
        for record in self.errors("mismatch"):
            self.assertEqual(record["type"], "DistBackendError")
            self.assertIn("allreduce 'world#1'", record["text"])
            self.assertIn("broadcast 'world#1'", record["text"])

    def test_calls_that_run_as_the_same_operation_differ(self):
        for record in self.errors("barrier_mismatch"):
            self.assertEqual(record["type"], "DistBackendError")
            self.assertIn("allreduce 'world#1'", record["text"])
            self.assertIn("allreduce 'world#1.barrier'", record["text"])

    @unittest.skipUnless(LONG, "with --all")
    def test_a_monitored_barrier_names_who_has_not_come(self):
        first, second, last = self.errors("monitored")
        for record in (first, second):
            self.assertIn("of the ranks of group 'world' these have not come: 2", record["text"])
        self.assertEqual(last["type"], "")

    def test_lines_of_the_script_are_named(self):
        """By MAYPOLE_TRACE_CALLS, on each rank those of all ranks."""
        with open(os.path.join(PROGRAMS, "errors.py"), encoding="utf-8") as f:
            lines = [line.strip() for line in f]
        broadcast, allreduce = lines.index("dist.broadcast(tensor, 0)") + 1, lines.index("dist.all_reduce(tensor)") + 1
        for record in self.errors("mismatch", MAYPOLE_TRACE_CALLS="1"):
            self.assertRegex(record["text"], r"\[call 1: rank 0: all_reduce at \S+/errors\.py:%d; rank 1: all_reduce at "
                             r"\S+/errors\.py:%d; rank 2: broadcast at \S+/errors\.py:%d\]$" %
                             (allreduce, allreduce, broadcast))

    @unittest.skipUnless(LONG, "with --all")
    def test_lines_of_ranks_that_have_not_come(self):
        first, second, last = self.errors("timeout", MAYPOLE_TRACE_CALLS="1")
        for record in (first, second):
            self.assertRegex(record["text"], r"\[call 1: rank 0: all_reduce at \S+; rank 1: all_reduce at \S+; rank 2: it "
                             r"has not said\]$")
        self.assertEqual(last["type"], "")

    @unittest.skipUnless(LONG, "with --all")
    def test_a_death_while_a_rank_waits_for_any_other(self):
        first, _ = self.errors("any_source_death")
        self.assertEqual(first["type"], "DistBackendError")
        self.assertRegex(first["text"], r"^recv from any rank of group 'world': .*rank 2\b.*(died|lost)")
        self.assertLess(first["seconds"], 5)

    @unittest.skipUnless(LONG, "with --all")
    def test_a_death_while_ddp_reduces_gradients(self):
        for record in self.errors("backward_death"):
            self.assertEqual(record["type"], "RuntimeError")
            self.assertRegex(record["text"], r"DistBackendError: all_reduce, call \d+ of group 'world': .*rank 2\b.*(died|lost)")
            self.assertLess(record["seconds"], 15)

    @unittest.skipUnless(LONG, "with --all")
    def test_a_first_message_after_a_death(self):
        for record in self.errors("new_pair_death"):
            self.assertEqual(record["type"], "DistBackendError")
            self.assertRegex(record["text"], r"^send to rank 2 of group 'world': .*rank 2\b.*(died|lost)")

    @unittest.skipUnless(LONG, "with --all")
    def test_all_leave_while_a_rank_waits_for_any_other(self):
        first = self.errors("any_source_left")[0]
        self.assertEqual(first["type"], "DistBackendError")
        self.assertIn("every other rank of group 'world' has left, and none has sent with tag 0", first["text"])

    @unittest.skipUnless(LONG, "with --all")
    def test_shapes_that_differ_are_named(self):
        for record in self.errors("shapes"):
            self.assertEqual(record["type"], "DistBackendError")
            self.assertIn("all_reduce, call 1 of group 'world'", record["text"])
            self.assertRegex(record["text"], r"\[4\].*\[5\]|\[5\].*\[4\]")

    @unittest.skipUnless(LONG, "with --all")
    def test_a_timeout_says_who_has_not_come(self):
        first, second, last = self.errors("timeout")
        for record in (first, second):
            self.assertEqual(record["type"], "DistBackendError")
            self.assertIn("all_reduce, call 1 of group 'world' has not ended in 2 s", record["text"])
            self.assertRegex(record["text"], r"rank 2\b.*not submitted")
            self.assertGreaterEqual(record["seconds"], 2)
        self.assertEqual(last["type"], "")

    @unittest.skipUnless(LONG, "with --all")
    def test_a_death_is_named_at_once(self):
        for record in self.errors("death"):
            self.assertEqual(record["type"], "DistBackendError")
            self.assertRegex(record["text"], r"rank 2\b.*(SIGKILL|killed|died|lost)")
            self.assertLess(record["seconds"], 5)


if __name__ == "__main__":
    unittest.main(argv=[arg for arg in sys.argv if arg != "--long"])
