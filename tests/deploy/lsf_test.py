"""deploy/lsf with stand-ins for jsrun and blaunch, because LSF is not free.

jsrun: Open MPI's mpirun over two nodes (mpi_nodes.py), with jsrun's variables instead of its own. PMIx is real.
blaunch: starts the command with a host name of its own.
"""

import json
import os
import shutil
import subprocess
import tempfile
import unittest

import harness
import machines
import mpi_nodes
import namespaces

RECIPES = os.path.join(harness.ROOT, "deploy/lsf")
WHERE = os.path.join(harness.ROOT, "tests/programs/where.py")

# jsrun's options of the recipe: it starts --tasks_per_rs ranks on each host.
JSRUN = """\
#!/bin/sh
while [ $# -gt 0 ]; do
  case "$1" in
    --nrs) nrs="$2" ;;
    --tasks_per_rs) tasks="$2" ;;
    --rs_per_host) [ "$2" = 1 ] || exit 2 ;;
    --cpu_per_rs | --gpu_per_rs) ;;
    *) break ;;
  esac
  shift 2
done
exec mpirun --allow-run-as-root --oversubscribe -np $((nrs * tasks)) {options} {dir}/rank "$@"
"""
RANK = """\
#!/bin/sh
export JSM_NAMESPACE_RANK="$OMPI_COMM_WORLD_RANK" JSM_NAMESPACE_SIZE="$OMPI_COMM_WORLD_SIZE"
export JSM_NAMESPACE_LOCAL_RANK="$OMPI_COMM_WORLD_LOCAL_RANK" JSM_NAMESPACE_LOCAL_SIZE="$OMPI_COMM_WORLD_LOCAL_SIZE"
for name in $(env | sed -n 's/^\\(OMPI_COMM_WORLD[A-Z_]*\\)=.*/\\1/p'); do unset "$name"; done
exec "$@"
"""
BLAUNCH = """\
#!/bin/sh
exec unshare --uts sh -c 'hostname "$1"; shift; exec "$@"' sh "$@"
"""


class Case(unittest.TestCase):
    def make_directory(self, parent):
        self.dir = tempfile.mkdtemp(prefix="mpl", dir=parent)
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        os.mkdir(os.path.join(self.dir, "runtime"))
        os.mkdir(os.path.join(self.dir, "results"))

    def write(self, name, text, **values):
        path = os.path.join(self.dir, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text.format(**values) if values else text)
        os.chmod(path, 0o755)
        return path

    def environment(self, **more):
        env = harness.environment(dict({
            "HOME": self.dir, "TMPDIR": self.dir, "MAYPOLE_RUNTIME_DIR": os.path.join(self.dir, "runtime"),
            "LSB_DJOB_HOSTFILE": os.path.join(self.dir, "hosts"), "LSB_JOBID": "714",
            "MAYPOLE_START_TIMEOUT": "30"}, **more))
        scripts = os.path.join(harness.ROOT, "client/python/scripts")
        env["PATH"] = os.pathsep.join([self.dir, env["PATH"], scripts])
        return env

    def places(self, size):
        """[(rank, local rank, local size, node, nodes, sum, host)], as the ranks saw them."""
        found = []
        for rank in range(size):
            with open(os.path.join(self.dir, "results", "rank.%d.json" % rank), encoding="utf-8") as f:
                seen = json.load(f)
            found.append(tuple(seen[k] for k in ("rank", "local_rank", "local_size", "cross_rank", "cross_size", "sum",
                                                 "host")))
        return found


@unittest.skipIf(shutil.which("mpirun", path="/usr/bin:/bin") is None, "Open MPI is not installed (openmpi-bin)")
@unittest.skipIf(namespaces.available(), namespaces.available())
class JsrunTest(Case):
    def test_two_hosts_of_two_ranks(self):
        self.make_directory("/tmp")
        with namespaces.Namespaces() as net:
            # The host of the script comes first, and has no ranks.
            self.write("hosts", "batch1\nn0\nn0\nn1\nn1\n")
            nodes = mpi_nodes.MpiNodes(net, self.dir)
            self.write("jsrun", JSRUN, dir=self.dir, options=" ".join(nodes.options))
            self.write("rank", RANK)
            command = [os.path.join(RECIPES, "train-jsrun.lsf"), harness.PYTHON, WHERE, self.dir + "/results"]
            done = subprocess.run(nodes.on_n0(command), env=self.environment(RANKS_PER_HOST="2"), capture_output=True,
                                  text=True, timeout=90, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.places(4), [(0, 0, 2, 0, 2, 10, "n0"), (1, 1, 2, 0, 2, 10, "n0"),
                                          (2, 0, 2, 1, 2, 10, "n1"), (3, 1, 2, 1, 2, 10, "n1")])
        print(done.stdout)


@unittest.skipIf(machines.available(), machines.available())
class BlaunchTest(Case):
    def setUp(self):
        self.machines = machines.Machines(["n0", "n1"])
        self.machines.__enter__()
        self.addCleanup(self.machines.__exit__)
        self.make_directory(self.machines.dir)
        self.write("hosts", "n0\nh1\nh1\n")
        self.write("blaunch", BLAUNCH)

    def run_script(self, *command):
        return self.machines[0].run([os.path.join(RECIPES, "train-blaunch.lsf"), *command], env=self.environment())

    def test_hosts_with_different_numbers_of_slots(self):
        done = self.run_script(harness.PYTHON, WHERE, self.dir + "/results")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.places(3), [(0, 0, 1, 0, 2, 6, "n0"), (1, 0, 2, 1, 2, 6, "h1"), (2, 1, 2, 1, 2, 6, "h1")])
        self.assertEqual([n for n in os.listdir(self.dir) if n.startswith(".maypole-lsf")], [])
        print(done.stdout)

    def test_a_rank_that_fails_and_words_with_spaces(self):
        done = self.run_script("sh", "-c", 'echo "$0"; exit 3', "it's one word")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertEqual(done.stdout, "it's one word\n" * 3)


if __name__ == "__main__":
    unittest.main()
