"""Cells that call maypole.run() in a real kernel of Jupyter. notebook_test runs this with a Python that has one.
"""

import json
import os
import queue
import shutil
import sys
import tempfile
import time
import unittest

import jupyter_client
import nbclient
import nbformat

import harness

NAME = "maypole-test"
SECONDS = 60
# A rank in a loop until the file `end` exists.
LOOP = """
import maypole, os
class Thing:
    def __init__(self, value):
        self.value = value
FACTOR = 3
def loop(directory):
    import numpy, time
    import maypole as hvd
    hvd.init()
    with open(os.path.join(directory, "rank.%d" % os.getpid()), "w"):
        pass
    print("grüße of", hvd.rank(), flush=True)
    while True:
        if hvd.allreduce(numpy.array([float(os.path.exists(os.path.join(directory, "end")))]), name="end")[0]:
            return Thing(FACTOR * hvd.rank())
        time.sleep(0.01)
"""


class Kernel:
    """A kernel, and what one cell after the other shows."""

    def __init__(self):
        self.manager = jupyter_client.KernelManager(kernel_name=NAME)
        self.manager.start_kernel()
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=SECONDS)

    def begin(self, code):
        self.outputs, self.status, self.state = [], {}, None
        self.message = self.client.execute(code)

    def look(self, until, what):
        """Reads output until until() is true."""
        deadline = time.monotonic() + SECONDS
        while not until():
            if time.monotonic() > deadline:
                raise AssertionError("no %s; so far: %r" % (what, self.outputs))
            try:
                message = self.client.get_iopub_msg(timeout=0.2)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") == self.message:
                self._note(message["msg_type"], message["content"])

    def _note(self, kind, content):
        if kind == "stream":
            self.outputs.append((content["name"], content["text"]))
        elif kind in ("display_data", "update_display_data"):
            self.outputs.append((kind, content["data"]["text/plain"]))
        elif kind == "error":
            self.outputs.append((kind, content["ename"] + ": " + content["evalue"]))
        elif kind == "status":
            self.state = content["execution_state"]

    def end(self):
        """Waits for the end of the cell."""
        self.look(lambda: self.state == "idle", "end of the cell")

    def run(self, code):
        self.begin(code)
        self.end()
        return self.text("stdout")

    def text(self, *kinds):
        return "".join(text for kind, text in self.outputs if kind in kinds)

    def lines(self):
        """What the line of progress has said."""
        return [text for kind, text in self.outputs if kind.endswith("display_data")]

    def stop(self):
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=True)


class CellsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """Everything is in one directory: the kernel's description, files and sockets of the jobs."""
        cls.dir = tempfile.mkdtemp(prefix="mpn", dir="/tmp")
        cls.addClassCleanup(shutil.rmtree, cls.dir, ignore_errors=True)
        spec = os.path.join(cls.dir, "jupyter", "kernels", NAME)
        os.makedirs(spec)
        with open(os.path.join(spec, "kernel.json"), "w") as f:
            json.dump({"argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
                       "display_name": NAME, "language": "python"}, f)
        os.environ.update(TMPDIR=cls.dir, IPYTHONDIR=cls.dir, JUPYTER_RUNTIME_DIR=cls.dir,
                          JUPYTER_PATH=os.path.join(cls.dir, "jupyter"))
        tempfile.tempdir = cls.dir

    def setUp(self):
        self.ranks_dir = tempfile.mkdtemp(prefix="ranks")

    def kernel(self):
        kernel = Kernel()
        self.addCleanup(kernel.stop)
        return kernel

    def begin_loop(self, kernel, more=""):
        kernel.run(LOOP)
        kernel.begin("things = maypole.run(loop, (%r,), np=2%s)" % (self.ranks_dir, more))
        kernel.look(lambda: all("[%d]<stdout>:grüße of %d\n" % (r, r) in kernel.text("stdout") for r in (0, 1)),
                    "live output of both ranks")

    def ranks(self):
        return [int(name.split(".")[1]) for name in os.listdir(self.ranks_dir) if name.startswith("rank.")]

    def check_nothing_is_left(self):
        pids = self.ranks()
        self.assertEqual(len(pids), 2)
        harness.wait_until(lambda: not any(map(harness.alive, pids)), 20, "the end of the ranks")
        mine = lambda: [argv for _, argv in harness.processes().values() if any(self.ranks_dir in a or "maypole-run-" in a
                                                                               for a in argv)]
        harness.wait_until(lambda: not mine(), 20, "the end of maypolerun")

    def end_loop(self):
        with open(os.path.join(self.ranks_dir, "end"), "w"):
            pass

    def test_output_and_progress_while_the_cell_runs(self):
        kernel = self.kernel()
        self.begin_loop(kernel)
        kernel.look(lambda: kernel.lines() and "steps/s" in kernel.lines()[-1], "steps per second")
        self.assertRegex(kernel.lines()[-1], r"^maypole: 2 of 2 ranks, [\d.]+ steps/s, 0:0\d:\d\d$")
        self.end_loop()
        kernel.end()
        self.assertEqual([kind for kind, _ in kernel.outputs].count("display_data"), 1)  # the others renew it
        self.assertRegex(kernel.lines()[-1], "^maypole: ended after ")
        self.assertEqual(kernel.text("stderr", "error"), "")
        self.assertEqual(kernel.run("print([type(t) is Thing and t.value for t in things])"), "[0, 3]\n")

    def test_without_progress(self):
        kernel = self.kernel()
        self.begin_loop(kernel, ", progress=False")
        self.end_loop()
        kernel.end()
        self.assertEqual({kind for kind, _ in kernel.outputs}, {"stdout"})

    def test_interrupting_the_cell_ends_the_job(self):
        kernel = self.kernel()
        self.begin_loop(kernel)
        kernel.manager.interrupt_kernel()
        kernel.end()
        self.assertIn("KeyboardInterrupt", kernel.text("error"))
        self.assertRegex(kernel.lines()[-1], "^maypole: interrupted after ")
        self.check_nothing_is_left()
        self.assertEqual(kernel.run("print(maypole.run(lambda: 7))"), "[7]\n")

    def test_a_kernel_that_is_killed_takes_its_job_with_it(self):
        kernel = self.kernel()
        self.begin_loop(kernel)
        kernel.manager.shutdown_kernel(now=True)
        self.check_nothing_is_left()

    def test_an_error_of_a_rank(self):
        kernel = self.kernel()
        kernel.run("import maypole\ndef fail():\n    raise KeyError('on purpose')")
        kernel.run("maypole.run(fail, np=2)")
        self.assertRegex(kernel.text("error"), r"^RankError: rank \d: KeyError: 'on purpose'")
        self.assertRegex(kernel.text("stderr"), r"(?m)^\[\d\]<stderr>:KeyError: 'on purpose'$")
        self.assertRegex(kernel.lines()[-1], "^maypole: failed after ")

    def test_the_example(self):
        book = nbformat.read(os.path.join(harness.ROOT, "examples", "maypole_notebook.ipynb"), as_version=4)
        nbformat.validate(book)
        self.assertFalse(any(cell.outputs for cell in book.cells if cell.cell_type == "code"))
        nbclient.NotebookClient(book, timeout=SECONDS, kernel_name=NAME).execute()
        outputs = {cell.id: cell.outputs for cell in book.cells if cell.cell_type == "code"}
        printed = "".join(output.text for output in outputs["ranks"] if output.output_type == "stream")
        for rank in (0, 1):
            self.assertRegex(printed, r"(?m)^\[%d\]<stdout>:step 300: loss 0\.000\d\d$" % rank)
        shown = [output for output in outputs["ranks"] if output.output_type == "display_data"]
        self.assertEqual(len(shown), 1)
        self.assertRegex(shown[0].data["text/plain"], "^maypole: ended after ")
        self.assertEqual(outputs["equal"][0].text, "y = 3.00 x + -1.00\n")


if __name__ == "__main__":
    unittest.main()
