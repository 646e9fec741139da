"""unittest.main() for tests that mostly wait: each runs in a process of its own, several at a time.

    if __name__ == "__main__":
        concurrently.main()

Tests of a class that has setUpClass() share a process, one after the other. The output of a process is printed in one
piece when it ends; the last lines are unittest's, for all tests.
"""
import os
import pickle
import sys
import tempfile
import time
import unittest

AT_A_TIME = 6
COUNTS = ("failures", "errors", "skipped", "expectedFailures", "unexpectedSuccesses")


def _tests(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _tests(test)
        else:
            yield test


def _groups(suite):
    """The tests of each process."""
    groups = {}
    for test in _tests(suite):
        shares = type(test).setUpClass.__func__ is not unittest.TestCase.setUpClass.__func__
        groups.setdefault(type(test) if shares else test, []).append(test)
    return list(groups.values())


class Runner:
    def __init__(self, verbosity=1, failfast=False, **_):
        self.verbosity, self.failfast = verbosity, failfast
        self.result = unittest.TestResult()
        self.running = {}  # by process: its first test, the files of its output and its counts

    def run(self, suite):
        began = time.monotonic()
        waiting = _groups(suite)[::-1]
        while waiting or self.running:
            while waiting and len(self.running) < AT_A_TIME and not (self.failfast and not self.result.wasSuccessful()):
                self._start(waiting.pop())
            if not self.running:
                break
            self._collect(*os.wait())
        self._end(time.monotonic() - began)
        return self.result

    def _start(self, tests):
        files = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid != 0:
            self.running[pid] = (tests[0], *files)
            return
        code = 1
        try:
            os.dup2(files[0].fileno(), 1)
            os.dup2(files[0].fileno(), 2)
            result = unittest.TextTestRunner(verbosity=self.verbosity, failfast=self.failfast).run(
                unittest.TestSuite(tests))
            pickle.dump([result.testsRun] + [len(getattr(result, c)) for c in COUNTS], files[1])
            files[1].flush()
            code = 0
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _collect(self, pid, status):
        test, output, counts = self.running.pop(pid)
        output.seek(0)
        sys.stderr.write(output.read().decode(errors="replace"))
        counts.seek(0)
        if status != 0:
            sys.stderr.write("ERROR: %s\nits process has ended with status %d\n" % (test, status))
            self.result.errors.append((test, ""))
            return
        run, *found = pickle.load(counts)
        self.result.testsRun += run
        for name, number in zip(COUNTS, found):
            getattr(self.result, name).extend([("", "")] * number)

    def _end(self, seconds):
        counts = ["%s=%d" % (words, len(getattr(self.result, name))) for name, words in zip(
            COUNTS, ("failures", "errors", "skipped", "expected failures", "unexpected successes"))
            if getattr(self.result, name)]
        sys.stderr.write("%s\nRan %d tests in %.3fs\n\n%s%s\n" % (
            "=" * 70, self.result.testsRun, seconds, "OK" if self.result.wasSuccessful() else "FAILED",
            " (%s)" % ", ".join(counts) if counts else ""))


def main():
    unittest.main(testRunner=Runner)
