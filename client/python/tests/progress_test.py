"""The line that maypole.run() shows: what is in it, and where. A script plays maypolerun."""

import contextlib
import http.server
import io
import os
import pickle
import tempfile
import threading
import types
import unittest
from unittest import mock

from maypole.runner import api, job, messages, progress


# Writes the endpoints to the file that its last option names; $2 is the directory of the results.
SCRIPT = """#!/bin/sh
for word; do [ "$word" = -- ] && break; file="$word"; done
printf '%s' >"$file.new" && mv "$file.new" "$file"
"""


class Daemon(http.server.BaseHTTPRequestHandler):
    """Coordinator and agent in one: of four ranks, and ten steps more at each look."""

    def do_GET(self):
        self.server.steps += 10
        text = ('# TYPE maypole_ranks gauge\nmaypole_ranks 4\nmaypole_ranks_of_old 7\n'
                'maypole_steps_total{job="a b",uid="0"} %d\n' % self.server.steps)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


class Display:
    """IPython's module, in a kernel: `shown` is what the cell has."""

    def __init__(self):
        self.shown = []
        self.display = types.SimpleNamespace(display=self.begin)
        self.get_ipython = lambda: types.SimpleNamespace(kernel=self)

    def begin(self, data, raw, display_id):
        assert raw and display_id
        self.shown.append(data["text/plain"])
        return self

    def update(self, data, raw):
        assert raw
        self.shown.append(data["text/plain"])

    def modules(self):
        return mock.patch.dict("sys.modules", {"IPython": self, "IPython.display": self.display})


class ProgressTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        server = http.server.HTTPServer(("127.0.0.1", 0), Daemon)
        server.steps = 0
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        self.endpoints = r"admin=a:1\ncoordinator=127.0.0.1:{0}\nnode0=127.0.0.1:{0}\n".format(server.server_port)
        for end in (server.server_close, thread.join, server.shutdown):
            self.addCleanup(end)
        for patch in (mock.patch.dict(os.environ, MAYPOLE_BIN=self.dir), mock.patch.object(progress, "PERIOD", 0.02),
                      mock.patch.object(job, "PERIOD", 0.02)):
            patch.start()
            self.addCleanup(patch.stop)
        with open(os.path.join(self.dir, "answer"), "wb") as f:
            f.write(messages.encode_answer(0, 1, result=pickle.dumps("done")))

    def run_script(self, text, options=(), **more):
        """(result, stdout, stderr) of a job whose maypolerun does this between its start and its end."""
        path = os.path.join(self.dir, "maypolerun")
        with open(path, "w", encoding="utf-8") as f:
            f.write(SCRIPT % self.endpoints)
            f.write(text + "\ncp %s/answer $2/result.0\n" % self.dir)
        os.chmod(path, 0o755)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            result = job.run_job(b"call", list(options), None, True, **more)
        return result, out.getvalue(), err.getvalue()

    def test_in_a_cell(self):
        cell = Display()
        with cell.modules():
            self.assertEqual(self.run_script("echo a line; sleep 0.3; echo another", ranks=4),
                             (["done"], "a line\nanother\n", ""))
        self.assertIn(cell.shown[0], ("maypole: starting, 0:00:00", "maypole: 4 of 4 ranks, 0:00:00"))
        steps = [text for text in cell.shown if "steps/s" in text]
        self.assertGreater(len(steps), 2)
        self.assertRegex(steps[-1], r"^maypole: 4 of 4 ranks, [\d.e+]+ steps/s, 0:00:0\d$")
        self.assertRegex(cell.shown[-1], r"^maypole: ended after 0:00:0\d$")

    def test_below_the_output(self):
        result, out, err = self.run_script("sleep 0.1; echo a warning >&2; sleep 0.1")
        self.assertEqual((result, out), (["done"], ""))
        self.assertRegex(err, r"\r +\ra warning\n\rmaypole: 4 ranks, ")
        self.assertRegex(err, r"\rmaypole: ended after 0:00:0\d *\n$")

    def test_with_the_file_that_the_user_has_chosen(self):
        chosen = os.path.join(self.dir, "chosen")
        for options in (["--endpoints-file", chosen], ["--verbose", "--endpoints-file=" + chosen]):
            cell = Display()
            with cell.modules():
                self.run_script("sleep 0.3", options)
            self.assertRegex(cell.shown[-2], "^maypole: 4 ranks, ")
            os.unlink(chosen)

    def test_of_a_failure(self):
        cell = Display()
        with cell.modules(), self.assertRaises(RuntimeError):
            self.run_script("exit 3")
        self.assertRegex(cell.shown[-1], "^maypole: failed after")

    def test_of_an_interruption(self):
        cell = Display()
        cell.update = mock.Mock(side_effect=[KeyboardInterrupt, None])
        with cell.modules(), self.assertRaises(KeyboardInterrupt):
            self.run_script("exec sleep 60")
        self.assertRegex(cell.update.call_args[0][0]["text/plain"], "^maypole: interrupted after")

    def test_a_daemon_that_does_not_answer(self):
        self.endpoints = "coordinator=127.0.0.1:1"
        cell = Display()
        with cell.modules():
            self.run_script("sleep 0.3")
        self.assertEqual(cell.shown[-2], "maypole: running, 0:00:00")

    def test_a_job_with_daemons_elsewhere(self):
        self.endpoints = ""
        cell = Display()
        with cell.modules():
            self.run_script("sleep 0.3")
        self.assertEqual(cell.shown[-2], "maypole: running, 0:00:00")


class ChoiceTest(unittest.TestCase):
    def chosen(self, **choice):
        """(whether progress is shown, the number of ranks that it expects)"""
        with mock.patch.object(job, "run_job") as run_job:
            api.run(print, np=2, **choice)
        return run_job.call_args[0][3:]

    def test_in_notebooks_unless_refused(self):
        self.assertEqual(self.chosen(), (False, 2))
        self.assertEqual(self.chosen(progress=True), (True, 2))
        with Display().modules():
            self.assertEqual(self.chosen(), (True, 2))
            self.assertEqual(self.chosen(progress=False), (False, 2))
            self.assertEqual(self.chosen(min_np=2), (True, None))  # it may change

    def test_ipython_in_a_terminal_is_no_notebook(self):
        terminal = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace())
        with mock.patch.dict("sys.modules", IPython=terminal):
            self.assertEqual(self.chosen(), (False, 2))
        with mock.patch.dict("sys.modules", IPython=types.SimpleNamespace(get_ipython=lambda: None)):
            self.assertEqual(self.chosen(), (False, 2))


if __name__ == "__main__":
    unittest.main()
