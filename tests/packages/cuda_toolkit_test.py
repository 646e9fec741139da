"""Which CUDA toolkit compiles the kernels of a wheel; the toolkits are fakes."""

import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, os.path.join(os.environ["TEST_SRCDIR"], os.environ["TEST_WORKSPACE"], "tools", "packages"))
import cuda_toolkit  # noqa: E402

NVCC = "#!/bin/sh\necho 'Cuda compilation tools, release %s, V%s.1'\n"
PTXAS = "#!/bin/sh\nfor known in %s; do [ \"$1\" != -arch=sm_$known ] || exit 0; done\nexit 1\n"
ALL = ["70", "75", "80", "86", "89", "90", "100", "120"]


class CudaToolkitTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="mpc", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.dir)
        cache = unittest.mock.patch.dict(os.environ, XDG_CACHE_HOME=os.path.join(self.dir, "cache"))
        cache.start()
        self.addCleanup(cache.stop)

    def toolkit(self, version, architectures):
        home = tempfile.mkdtemp(dir=self.dir)
        os.mkdir(home + "/bin")
        for name, text in (("nvcc", NVCC % (version, version)), ("ptxas", PTXAS % " ".join(architectures))):
            with open(os.path.join(home, "bin", name), "w", encoding="utf-8") as f:
                f.write(text)
            os.chmod(f.name, 0o755)
        return home

    def home(self, own, pypi):
        """The toolkit that is taken, and the lines that are said; pypi: where PyPI's is, or why it cannot be had."""
        effect = {"return_value": pypi} if isinstance(pypi, str) else {"side_effect": pypi}
        said = io.StringIO()
        with unittest.mock.patch.object(cuda_toolkit, "pypi", **effect), contextlib.redirect_stderr(said):
            return cuda_toolkit.home({"CUDA_HOME": own}), said.getvalue()

    def test_the_architectures_of_a_wheel(self):
        self.assertEqual(cuda_toolkit.wanted_architectures(), ALL)

    def test_a_complete_toolkit_here_is_taken(self):
        own = self.toolkit("12.9", ALL + ["121"])
        self.assertEqual(self.home(own, "/pypi"), (own, ""))

    def test_pypi_otherwise(self):
        for own, why in ((self.toolkit("13.0", ALL[1:]), "for sm_70 as PTX only"),
                         ("/nowhere", "makes no CUDA kernels: there is no nvcc in /nowhere/bin"),
                         (self.toolkit("11.8", ALL), "nvcc 11.8 in .*/bin is older than 12.0")):
            home, said = self.home(own, "/pypi")
            self.assertEqual(home, "/pypi")
            self.assertRegex(said, r"^maypole: the wheel's kernels are compiled by nvcc of PyPI, .*%s.*\n$" % why)

    def test_without_pypi_what_is_here(self):
        own = self.toolkit("13.0", ALL[1:])
        home, said = self.home(own, cuda_toolkit.NotFound("no network"))
        self.assertEqual(home, own)
        self.assertRegex(said, r"^maypole: the wheel has fewer kernels than others, .*\(no network\), .*sm_70 as PTX.*\n$")
        home, said = self.home("/nowhere", cuda_toolkit.NotFound("no network"))
        self.assertEqual(home, "/nowhere")
        self.assertRegex(said, r"^maypole: the wheel is built without kernels, .*\(no network\), .* no nvcc in /nowhere.*\n$")

    def test_none_asks_nobody(self):
        self.assertEqual(self.home("none", AssertionError("PyPI is asked")), ("none", ""))
        self.assertEqual(cuda_toolkit.probe("none")[0], [])

    def test_an_index_that_cannot_be_reached(self):
        with unittest.mock.patch.dict(os.environ, PIP_INDEX_URL="http://127.0.0.1:1/simple", PIP_CONFIG_FILE="/dev/null"):
            with self.assertRaisesRegex(cuda_toolkit.NotFound, "^pip: ERROR: .*nvidia-cuda-nvcc"):
                cuda_toolkit.pypi()
        self.assertEqual(os.listdir(os.path.join(self.dir, "cache", "maypole")), [])

    def test_what_pip_has_downloaded_becomes_a_toolkit(self):
        def download(to):
            packed = self.toolkit("13.0", ALL[1:])
            for name, place, files in (("cu13", "nvidia/cu13", ("nvcc", "ptxas")), ("cu12", "nvidia/cuda_nvcc", ("ptxas",))):
                source = packed if name == "cu13" else self.toolkit("12.9", ALL)
                root = tempfile.mkdtemp(dir=self.dir)
                for file in files:
                    os.makedirs(os.path.join(root, place, "bin"), exist_ok=True)
                    shutil.copyfile(os.path.join(source, "bin", file), os.path.join(root, place, "bin", file))
                os.makedirs(to, exist_ok=True)
                os.rename(shutil.make_archive(os.path.join(to, name), "zip", root), os.path.join(to, name + ".whl"))

        with unittest.mock.patch.object(cuda_toolkit, "_download", download):
            home = cuda_toolkit.pypi()
        self.assertEqual(cuda_toolkit.probe(home)[0], ALL)
        with unittest.mock.patch.object(cuda_toolkit, "_download", side_effect=AssertionError("downloaded again")):
            self.assertEqual(cuda_toolkit.pypi(), home)
        self.assertEqual(subprocess.run([home + "/bin/nvcc"], check=False, stdout=subprocess.DEVNULL).returncode, 0)


if __name__ == "__main__":
    unittest.main()
