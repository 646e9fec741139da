"""tools/ci/test.py counts test cases, not test targets, and knows why some were skipped; times.py adds up a profile."""
import json
import os
import tempfile
import unittest

from tools.ci import test as ci
from tools.ci import times


def cases(xml):
    with tempfile.NamedTemporaryFile("w", suffix=".xml", dir=os.environ.get("TEST_TMPDIR")) as f:
        f.write(xml)
        f.flush()
        return ci.cases(f.name)


def count(xml):
    return cases(xml).counts()


def bazel_xml(log, failure=""):
    """The test.xml that bazel writes for a test without its own report."""
    return ("<testsuites><testsuite><testcase name='x'>%s</testcase><system-out><![CDATA[%s]]></system-out>"
            "</testsuite></testsuites>" % (failure, log))


class CountTest(unittest.TestCase):
    def test_googletest(self):
        found = cases("<testsuites><testsuite><testcase name='a'/><testcase classname='S' name='b'><failure/></testcase>"
                      "<testcase name='c' result='skipped'><skipped message='some/x_test.cc:12&#x0A;no &quot;device&quot;'>"
                      "<![CDATA[...]]></skipped></testcase><testcase name='d' status='notrun'/></testsuite></testsuites>")
        self.assertEqual(found.counts(), (1, 1, 2))
        self.assertEqual(found.failures, ["S.b"])
        self.assertEqual(found.reasons, ['no "device"', "disabled"])

    def test_unittest(self):
        self.assertEqual(count(bazel_xml("...\nRan 7 tests in 0.1s\n\nOK\n")), (7, 0, 0))
        self.assertEqual(count(bazel_xml("Ran 1 test in 0.1s\n\nOK (skipped=1)\n")), (0, 0, 1))
        self.assertEqual(count(bazel_xml("Ran 9 tests in 0.1s\n\nFAILED (failures=2, errors=1, skipped=3)\n",
                                         "<error/>")), (3, 3, 3))

    def test_reasons_of_unittest(self):
        """The log is that of a real one."""
        class Skips(unittest.TestCase):
            @unittest.skip("needs 'root'")
            def test_a(self):
                pass

            def test_b(self):
                """A test with a text."""
                self.skipTest('no "x" \n here')

            def test_c(self):
                self.fail()

        with tempfile.TemporaryFile("w+") as log:
            unittest.TextTestRunner(log, verbosity=2).run(unittest.defaultTestLoader.loadTestsFromTestCase(Skips))
            log.seek(0)
            found = cases(bazel_xml(log.read(), "<error/>"))
        self.assertEqual(found.counts(), (0, 1, 2))
        self.assertEqual(found.reasons, ["needs 'root'", 'no "x" \n here'])
        self.assertEqual(len(found.failures), 1)
        self.assertIn("test_c", found.failures[0])

    def test_a_reason_that_is_missing(self):
        self.assertEqual(cases(bazel_xml("Ran 2 tests in 0.1s\n\nOK (skipped=2)\n")).reasons, ["", ""])
        targets = [ci.Target("//a:%s" % name, "PASSED", 0, False, ci.Cases(reasons=reasons))
                   for name, reasons in (("b", ["", "no GPU"]), ("c", ["no\nGPU"]), ("d", ["no GPU"]))]
        self.assertEqual(ci.reasons_text(targets), ["3 skipped: no GPU (//a:b, //a:c, //a:d)",
                                                    "1 skipped: no reason given (//a:b)"])

    def test_any_other_program(self):
        self.assertEqual(count(bazel_xml("fine\n")), (1, 0, 0))
        self.assertEqual(count(bazel_xml("Segmentation fault\n", "<error/>")), (0, 1, 0))


class TimesTest(unittest.TestCase):
    def profile(self, *actions):
        """Actions are (thread, description, mnemonic, begin, seconds); a second before, they wait for a core."""
        events = []
        for thread, description, mnemonic, begin, seconds in actions:
            for category, name, at, duration in (("action processing", description, begin - 1, seconds + 1),
                                                 ("local action execution", mnemonic, begin, seconds)):
                events.append({"cat": category, "name": name, "ph": "X", "tid": thread, "ts": at * 1e6, "dur": duration * 1e6})
        return times.Profile(json.dumps({"otherData": {"date": "a day"}, "traceEvents": events + [{"ph": "M"}]}))

    def test_sums(self):
        build = self.profile((1, "Compiling a/b_test.cc", "CppCompile", 1, 4), (2, "Compiling a/b.cc", "CppCompile", 1, 3),
                             (2, "Compiling a/c.cc", "CppCompile", 5, 3), (1, "Linking a/b_test", "CppLink", 6, 2.5),
                             (2, "Generating x", "subprocess.run", 9, 1))
        test = self.profile((1, "Testing //a:b_test", "TestRunner", 1, 9))
        targets = [{"label": "//a:%s" % name, "seconds": seconds, "cpu": cpu,
                    "cases": {"passed": 2, "failed": 0, "skipped": 1}}
                   for name, seconds, cpu in (("busy", 9, 8.5), ("waits", 5, 1), ("unknown", 7, None))]
        rows = [line for line in times.page_part(build, test, targets, 2, 0.5).splitlines() if line[:2] in ("| ", "|-")]
        self.assertEqual(rows, [
            "| what | seconds | number | seconds of slots |",
            "|---|---|---|---|",
            "| building | 10 | 5 | 14 of 20 |",
            "| - compiling tests | | 1 | 4 |",
            "| - compiling the rest | | 2 | 6 |",
            "| - linking | | 1 | 2 |",
            "| - other actions | | 1 | 1 |",
            "| testing | 10 | 3 | 21 of 20 |",
            "| test | seconds | of them on a processor | cases |",
            "|---|---|---|---|",
            "| `//a:busy` | 9.0 | 8.5 | 3 |",
            "| `//a:unknown` | 7.0 | ? | 3 |",
            "| `//a:waits` | 5.0 | 1.0 | 3 |",
            "| test | seconds | of them on a processor | cases |",
            "|---|---|---|---|",
            "| `//a:waits` | 5.0 | 1.0 | 3 |",
            "| `//a:busy` | 9.0 | 8.5 | 3 |",
        ])


if __name__ == "__main__":
    unittest.main()
