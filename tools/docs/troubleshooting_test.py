"""docs/troubleshooting has every message of the sources: how they are found, and that none is missing."""
import os
import re
import sys
import unittest

# Beside the sources themselves, not their copies of Bazel's: what is tested is the whole tree.
HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)

import cpp_texts  # noqa: E402
import messages  # noqa: E402
import python_texts  # noqa: E402
import shell_texts  # noqa: E402
import troubleshooting  # noqa: E402
from text import BRACES, PRINTF, Text, is_prose  # noqa: E402


FILES = []  # (content, module, texts) of each source file


def setUpModule():
    FILES.extend((content, reader, reader.texts(path, content)) for path, content, reader in messages.sources(ROOT))


def found(reader, source):
    return [(text.call, text.text) for text in reader.texts("x", source) if is_prose(text.text)]


class CppTest(unittest.TestCase):
    def check(self, source, *expected):
        self.assertEqual(found(cpp_texts, source), list(expected))

    def test_what_is_joined(self):
        self.check('return absl::UnavailableError(absl::StrCat("no node ", name(n), " here", ": \\"", x, "\\""));',
                   ("absl::UnavailableError", 'no node … here: "…"'))
        self.check('Fail(Status(Code::kAborted, "rank " + std::to_string(r) + " of "\n "job " + id));',
                   ("Status", "rank … of job …"))
        self.check('fprintf(stderr, "%s: it took %.1f s\\n", a, b);', ("fprintf", "…: it took … s"))
        self.check('spdlog::warn("event=x text={}", "a b");', ("spdlog::warn", "event=x text=…"))

    def test_choices(self):
        self.check('return Status(kX, absl::StrCat(n, (n == 1 ? " rank has" : " ranks have"), " left"));',
                   ("Status", "… (rank has|ranks have) left"))
        self.check('s = absl::StrCat("they wait", late ? ", it is late" : "");', ("", "they wait[, it is late]"))
        self.check('return a ? "it is not there" : "";', ("", "it is not there"))

    def test_what_is_no_text(self):
        self.check('// "a comment" here\n/* "and another" */ #include "some file.h"\nint x = 1\'000;')
        self.check('char c = \'"\'; Log("a quote before");', ("Log", "a quote before"))
        self.check('constexpr char kText[] = R"x(raw "text" here)x";', ("", 'raw "text" here'))

    def test_texts_in_other_arguments(self):
        self.check('return Status(kX, "no place for " + Name(r, "the old one"));',
                   ("Status", "no place for …"), ("Name", "the old one"))
        self.check('return std::make_unique<X>(y, "in its second argument");', ("<>", "in its second argument"))
        self.check('if (n > 0) absl::StrAppend(&out, "; and ", n, " other ranks");', ("", "…; and … other ranks"))
        self.check('F((mark + std::string("not of this version")).c_str());', ("F", "…not of this version…"))


class PythonTest(unittest.TestCase):
    def check(self, source, *expected):
        self.assertEqual(found(python_texts, source), list(expected))

    def test_what_is_joined(self):
        self.check('raise ValueError(f"{name}: expected {a!r}, " "not this")', ("ValueError", "…: expected …, not this"))
        self.check('sys.exit("maypole: %s is missing" % tool)', ("sys.exit", "maypole: … is missing"))
        self.check('x("it has {} rows".format(n))', ("x", "it has … rows"))
        self.check('_log.warning("no %s here", a)', ("_log.warning", "no … here"))

    def test_choices_and_holes(self):
        self.check('f(f"{a} {\'is not\' if b else \'is the\'} one {g(\'with another text\')}")',
                   ("f", "… (is not|is the) one …"), ("g", "with another text"))
        self.check('f(x, help="what it does")', ("f", "what it does"))

    def test_docstrings_are_none(self):
        self.check('"""A doc string."""\ndef f():\n    """Another doc string."""\n')


class ShellTest(unittest.TestCase):
    def test_what_goes_to_standard_error(self):
        self.assertEqual(found(shell_texts, 'echo "said to all"\necho "setup: $* is $(id -un "$x")" >&2\n'
                                            'a || fail "no such thing: ${b}" \\\n  "do that"\n'),
                         [("echo", "setup: … is …"), ("fail", "no such thing: … do that")])


class NothingIsLostTest(unittest.TestCase):
    def test_each_literal_of_the_sources_is_in_a_text(self):
        count = 0
        for content, reader, texts in FILES:
            if reader is shell_texts:
                continue
            joined = "\n".join(text.text for text in texts)
            for literal in reader.literals(content):
                for part in re.split(PRINTF + "|" + BRACES, re.sub(r"\s+", " ", literal)):
                    if is_prose(part):
                        count += 1
                        self.assertIn(part.strip(), joined, texts[0].path)
        self.assertGreater(count, 2500)


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.texts = [text for _, _, texts in FILES for text in texts if is_prose(text.text)]
        cls.pages, cls.problems = troubleshooting.make(ROOT, cls.texts)

    def test_every_message_has_an_entry_and_every_rule_a_message(self):
        self.assertEqual(self.problems, [])

    def test_the_pages_are_up_to_date(self):
        self.assertEqual(troubleshooting.stale(ROOT, self.pages), [], "run tools/docs/troubleshooting.py")

    def test_links_lead_to_the_page_that_has_the_heading(self):
        homes = {"a": ("docs/t/a.md", ""), "b": ("docs/t/a.md", "#b")}
        for path, links in (("docs/t/a.md", "](a.md) ](#b)"), ("docs/t/c.md", "](a.md) ](a.md#b)"),
                            ("docs/t.md", "](t/a.md) ](t/a.md#b)")):
            self.assertEqual(troubleshooting._linked(path, "](#a) ](#b)", homes), links)
        self.assertEqual(troubleshooting._linked("docs/t/a.md", "](x.md#y) ](../z) ](https://w)", homes),
                         "](../x.md#y) ](../../z) ](https://w)")

    def test_messages_of_each_kind_are_there(self):
        for text in ("has shut down; operations that need it cannot run", "libmaypole.so not found",
                     "every rank must submit it equally often", "setup.sh first"):
            self.assertIn(text, "".join(self.pages.values()))
        self.assertGreater(len(self.texts), 1500)

    def test_a_new_message_is_noticed(self):
        new = Text("client/ctl/new.cc", 7, "Status", "a message that nobody has described")
        self.assertEqual(troubleshooting.make(ROOT, self.texts + [new])[1],
                         ["client/ctl/new.cc:7: no entry has this message: a message that nobody has described"])

    def test_a_message_that_is_gone_is_noticed(self):
        left = [text for text in self.texts if "its connection closed without shutdown" not in text.text]
        (problem,) = troubleshooting.make(ROOT, left)[1]
        self.assertIn("its connection closed without shutdown", problem)


if __name__ == "__main__":
    unittest.main()
