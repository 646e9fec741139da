"""What the compilers made of the GPU kernels: no spills, few registers, 16 bytes at once, no other arithmetic than the CPU's.

The arguments are the files of the listing of cuda_images: for each .cu file its PTX, and for each architecture the
machine code (.cubin) and what ptxas -v says about it (.log).
"""
import collections
import glob
import os
import pwd
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

import cubins

# 64 registers allow 1,024 threads on a multiprocessor, which with four loads of 16 bytes each are enough to use its
# share of the memory's bandwidth.
MOST_REGISTERS = 64
KERNELS = 50
PTX = ["sm_80", "sm_70"]
# Of these the code is read, which takes seconds for each: the oldest that DISASSEMBLER knows, one between, the newest.
DISASSEMBLED = ["sm_75", "sm_90", "sm_120"]
DISASSEMBLER = "13.5.37"  # of nvidia-cuda-nvdisasm on PyPI

FILES = []  # set from the command line


def files(suffix):
    found = [f for f in FILES if f.endswith(suffix)]
    assert found, suffix
    return found


def architectures():
    return sorted({re.search(r"\.(sm_\d+)\.cubin$", f).group(1) for f in files(".cubin")})


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def compiled(log):
    """name -> (registers, bytes of stack and spills), from what ptxas -v says."""
    kernels = {}
    for part in re.split(r"Compiling entry function ", log)[1:]:
        name = re.match(r"'(\w+)'", part).group(1)
        stack = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part)
        registers = re.search(r"Used (\d+) registers", part)
        kernels[name] = int(registers.group(1)), sum(int(n) for n in stack.groups())
    return kernels


def bodies(text, begin, end):
    """name -> the lines of a kernel, which begin with one that `begin` matches."""
    found = {}
    name = None
    for line in text.split("\n"):
        started = re.search(begin, line)
        if started:
            name = started.group(1)
            found[name] = []
        elif name and re.search(end, line):
            name = None
        elif name:
            found[name].append(line)
    return {n: "\n".join(lines) for n, lines in found.items()}


def moves_memory(kernel):
    return kernel != "maypole_write_word"


def disassembler():
    """The path of nvdisasm: the toolkit's, or PyPI's, kept in the user's cache. None if there is neither."""
    own = os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "nvdisasm")
    if os.path.exists(own):
        return own
    cache = os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".cache", "maypole", "nvdisasm-" + DISASSEMBLER)
    if not glob.glob(cache + "/nvidia/*/bin/nvdisasm"):
        if not download(cache):
            return None
    return glob.glob(cache + "/nvidia/*/bin/nvdisasm")[0]


def download(to):
    with tempfile.TemporaryDirectory() as wheels:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check", "-d", wheels,
               "nvidia-cuda-nvdisasm==" + DISASSEMBLER]
        try:
            done = subprocess.run(pip, capture_output=True, text=True, timeout=50).returncode == 0
        except subprocess.TimeoutExpired:
            done = False
        if not done:
            return False
        os.makedirs(os.path.dirname(to), exist_ok=True)
        with tempfile.TemporaryDirectory(dir=os.path.dirname(to)) as work:
            part = os.path.join(work, "part")
            with zipfile.ZipFile(glob.glob(wheels + "/*.whl")[0]) as wheel:
                wheel.extractall(part)
            for program in glob.glob(part + "/nvidia/*/bin/nvdisasm"):
                os.chmod(program, 0o755)
            try:
                os.rename(part, to)
            except OSError:  # another test was faster
                pass
    return True


class CodeTest(unittest.TestCase):
    def has(self, body, pattern):
        self.assertTrue(re.search(pattern, body), "nothing like " + pattern)

    def lacks(self, body, pattern):
        found = re.search(pattern, body)
        self.assertFalse(found, found and "not wanted: " + found.group(0))

    def test_registers_and_spills(self):
        for arch in architectures():
            kernels = {}
            for log in files(arch + ".log"):
                kernels.update(compiled(read(log)))
            self.assertEqual(len(kernels), KERNELS, arch)
            for name, (registers, spilled) in kernels.items():
                with self.subTest(arch=arch, kernel=name):
                    self.assertEqual(spilled, 0, "bytes on the stack")
                    self.assertLessEqual(registers, MOST_REGISTERS, "registers")

    def test_code_is_of_its_architecture(self):
        for arch in architectures():
            found = collections.Counter()
            for cubin in files(arch + ".cubin"):
                with open(cubin, "rb") as f:
                    found.update(cubins.code(f.read()))
            self.assertEqual(found, {int(arch[3:]): cubins.IMAGES})

    def test_ptx(self):
        for arch in PTX:
            kernels = {}
            for ptx in files(arch + ".ptx"):
                text = read(ptx)
                self.assertTrue("\n.version 8.0\n.target %s\n" % arch in text, ptx)
                kernels.update(bodies(text, r"\.entry (\w+)\(", r"^}"))
            self.assertEqual(len(kernels), KERNELS)
            self.check_ptx(arch, kernels)

    def check_ptx(self, arch, kernels):
        for name, body in kernels.items():
            with self.subTest(arch=arch, kernel=name):
                # Bits that a CPU does not have: fused (also where a compiler may fuse), flushed, approximated.
                self.lacks(body, r"\bfma\.|\.ftz|\.approx|\b(add|sub|mul)\.f(32|64)")
                # Memory is known to be global; threads do not need each other; nothing is in local memory.
                self.lacks(body, r"\b(ld|st)\.(v\d\.)?[usbf]\d+|\bbar\.|\bshfl\.|\.local")
                if moves_memory(name):
                    self.has(body, r"\bld\.global\.v4")
                    self.has(body, r"\bst\.global\.v4")
                else:
                    self.has(body, r"\b(fence\.sc|membar)\.sys;\s*st\.volatile\.global\.u64")

    def test_machine_code(self):
        nvdisasm = disassembler()
        if nvdisasm is None:
            self.skipTest("no nvdisasm: not in the CUDA toolkit, and PyPI cannot be reached")
        for arch in set(architectures()).intersection(DISASSEMBLED):
            kernels = {}
            for cubin in files(arch + ".cubin"):
                text = subprocess.run([nvdisasm, cubin], capture_output=True, text=True, check=True).stdout
                kernels.update(bodies(text, r"^\s*\.section\s+\.text\.(\w+)", r"^\s*\.section\s"))
            self.assertEqual(len(kernels), KERNELS, arch)
            for name, body in kernels.items():
                with self.subTest(arch=arch, kernel=name):
                    self.lacks(body, r"\b(LDL|STL|LD|ST)\b")
                    if moves_memory(name):
                        self.has(body, r"\bLDG\.E\.128\b")
                        self.has(body, r"\bSTG\.E\.128\b")


if __name__ == "__main__":
    FILES = [a for a in sys.argv[1:] if not a.startswith("-")]
    unittest.main(argv=[a for a in sys.argv if a not in FILES])
