"""deploy/apptainer without Apptainer: buildah runs the sections of the definition; `apptainer exec` is a chroot.

The chroot has this machine's processes, network and /tmp, as Apptainer's containers have.
"""

import os
import re
import shutil
import subprocess
import unittest

import containers
import harness
import installed
import metadata
import mpi_nodes
import namespaces

REASON = containers.available() or namespaces.available()
DEFINITION = os.path.join(harness.ROOT, "deploy/apptainer/maypole.def")
MPIRUN = shutil.which("mpirun", path="/usr/bin:/bin")

# apptainer exec IMAGE COMMAND...
APPTAINER = """\
#!/bin/sh
[ "$1 $2" = "exec maypole.sif" ] || exit 2
shift 2
. {environment}
exec unshare --mount sh -c '
  for d in /proc /dev /tmp; do mount --rbind $d {root}$d || exit; done
  exec chroot {root} "$@"' sh "$@"
"""


def sections():
    """{"post": text, ...}, and the header under ""."""
    with open(DEFINITION, encoding="utf-8") as f:
        parts = re.split(r"^%(\w+)$", f.read(), flags=re.M)
    return dict(zip([""] + parts[1::2], parts[0::2]))


@unittest.skipIf(REASON, REASON)
class ApptainerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.storage = containers.Storage()
        cls.storage.__enter__()
        cls.addClassCleanup(cls.storage.__exit__)
        cls.sections = sections()
        assert cls.sections[""].split()[:4] == ["Bootstrap:", "docker", "From:", "debian:bookworm-slim"]
        # %files: the wheel, which lies in the clone's out/packages.
        packages = os.path.join(cls.storage.dir, "out/packages")
        os.makedirs(packages)
        wheel = installed.make_wheel(packages)
        source, target = cls.sections["files"].split()
        assert source == "out/packages/" + os.path.basename(wheel), source
        cls.container = cls.storage.command("buildah", "from", containers.BASE).strip()
        cls.storage.command("buildah", "copy", cls.container, wheel, target)
        cls.run_section("post")
        cls.root = cls.storage.command("buildah", "mount", cls.container).strip()
        cls.write("environment", cls.sections["environment"])
        cls.write("apptainer", APPTAINER, root=cls.root, environment=os.path.join(cls.storage.dir, "environment"))

    @classmethod
    def run_section(cls, name):
        """As Apptainer: by a shell that ends at the first command that fails, after %environment except for %post."""
        text = cls.sections[name] if name == "post" else cls.sections["environment"] + cls.sections[name]
        return cls.storage.command("buildah", "run", "--isolation", "chroot", cls.container, "--",
                                   "/bin/sh", "-e", "-c", text)

    @classmethod
    def write(cls, name, text, **values):
        path = os.path.join(cls.storage.dir, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text.format(**values) if values else text)
        os.chmod(path, 0o755)
        return path

    def test_the_containers_own_test(self):
        self.assertIn(metadata.version(installed.ROOT), self.run_section("test"))

    @unittest.skipIf(MPIRUN is None, "Open MPI is not installed (openmpi-bin)")
    def test_mpirun_outside_of_the_containers_of_two_nodes(self):
        shutil.copy(os.path.join(harness.ROOT, "tests/programs/where.py"), self.storage.dir)
        with namespaces.Namespaces() as net:
            nodes = mpi_nodes.MpiNodes(net, self.storage.dir)
            # No variable of this machine's Maypole: the ranks have the container's.
            env = {"PATH": self.storage.dir + ":/usr/sbin:/usr/bin:/sbin:/bin", "HOME": self.storage.dir}
            command = [MPIRUN, "--allow-run-as-root", "--oversubscribe", "-np", "4", *nodes.options,
                       "apptainer", "exec", "maypole.sif", "python3", os.path.join(self.storage.dir, "where.py")]
            done = subprocess.run(nodes.on_n0(command), env=env, capture_output=True, text=True, timeout=120,
                                  stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        # The container's Python is unbuffered: line ends come one by one, and mpirun may mix those of several ranks.
        lines = re.findall(r"rank \d of \d: local \d of \d, node \d of \d: sum \d+", done.stdout)
        self.assertEqual(sorted(lines), [
            "rank %d of 4: local %d of 2, node %d of 2: sum 10" % (r, r % 2, r // 2) for r in range(4)])
        print(done.stdout)


if __name__ == "__main__":
    unittest.main()
