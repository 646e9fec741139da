"""tools/ci/test.py counts test cases, not test targets."""
import os
import tempfile
import unittest

from tools.ci import test as ci


def count(xml):
    with tempfile.NamedTemporaryFile("w", suffix=".xml", dir=os.environ.get("TEST_TMPDIR")) as f:
        f.write(xml)
        f.flush()
        return ci.cases(f.name)


def bazel_xml(log, failure=""):
    """The test.xml that bazel writes for a test without its own report."""
    return ("<testsuites><testsuite><testcase name='x'>%s</testcase><system-out><![CDATA[%s]]></system-out>"
            "</testsuite></testsuites>" % (failure, log))


class CountTest(unittest.TestCase):
    def test_googletest(self):
        self.assertEqual(count("<testsuites><testsuite><testcase name='a'/><testcase name='b'><failure/></testcase>"
                               "<testcase name='c' result='skipped'/></testsuite></testsuites>"), (1, 1, 1))

    def test_unittest(self):
        self.assertEqual(count(bazel_xml("...\nRan 7 tests in 0.1s\n\nOK\n")), (7, 0, 0))
        self.assertEqual(count(bazel_xml("Ran 1 test in 0.1s\n\nOK (skipped=1)\n")), (0, 0, 1))
        self.assertEqual(count(bazel_xml("Ran 9 tests in 0.1s\n\nFAILED (failures=2, errors=1, skipped=3)\n",
                                         "<error/>")), (3, 3, 3))

    def test_any_other_program(self):
        self.assertEqual(count(bazel_xml("fine\n")), (1, 0, 0))
        self.assertEqual(count(bazel_xml("Segmentation fault\n", "<error/>")), (0, 1, 0))


if __name__ == "__main__":
    unittest.main()
