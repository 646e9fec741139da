#!/usr/bin/env python3
"""Makes docs/troubleshooting.md from the messages in the sources and docs/troubleshooting.src.

usage: tools/docs/troubleshooting.py [--check]     (--check: writes nothing)

docs/troubleshooting.src/*.md are the page's text, in the order of their names. In place of messages it has blocks of rules
(messages.py), one a line:

    ```messages
    its connection closed without shutdown
    = has shut down
    file: client/launcher/hosts/ssh.cc
    ```

which become the messages that these rules choose. not_messages.txt has rules for texts that are none: help texts,
names of metrics, output. It is an error if a text of the sources is chosen by no rule, a rule chooses none, or a rule is
there twice: the list of these is printed, with status 1. So no message can be missing on the page.
"""

import argparse
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import messages  # noqa: E402

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_SOURCE = "docs/troubleshooting.src"
_PAGE = "docs/troubleshooting.md"
_BLOCK = re.compile(r"^```messages\n(.*?)^```$", re.M | re.S)
_MADE = "<!-- Made by tools/docs/troubleshooting.py from %s and the sources: do not edit. -->\n" % _SOURCE


def _read(root, name):
    with open(os.path.join(root, name), encoding="utf-8") as f:
        return f.read()


def _rules(lines):
    """The rules of these lines; empty ones and those that begin with `# ` are none."""
    return [messages.parse_rule(line) for line in lines if line and not line.startswith("# ")]


def _problems(rules, chosen, left):
    for text in left:
        yield "%s:%d: no entry has this message: %s" % (text.path, text.line, text.text)
    for rule in rules:
        if rules.count(rule) > 1:
            yield "%s: a rule that is there twice: %s" % (_SOURCE, rule)
        elif not chosen[rule]:
            yield "%s: a rule that chooses no message, or only such as longer rules choose: %s" % (_SOURCE, rule)


def _listed(rules, chosen):
    """The block of the page for these rules: each message once, the others in the order of rules and sources."""
    texts = dict.fromkeys(text.text for rule in rules for text in chosen[rule])
    return "```text\n%s\n```" % "\n".join(texts)


def make(root, found=None):
    """(the page, what is wrong: lines). found: the texts of the sources, if not those below `root`."""
    names = sorted(name for name in os.listdir(os.path.join(root, _SOURCE)) if name.endswith(".md"))
    source = "\n".join(_read(root, os.path.join(_SOURCE, name)).rstrip() + "\n" for name in names)
    rules = [rule for block in _BLOCK.findall(source) for rule in _rules(block.splitlines())]
    rules += _rules(_read(root, os.path.join(_SOURCE, "not_messages.txt")).splitlines())
    chosen, left = messages.assign(messages.texts(root) if found is None else found, list(dict.fromkeys(rules)))
    page = _BLOCK.sub(lambda m: _listed(_rules(m.group(1).splitlines()), chosen), source)
    return _MADE + page, list(_problems(rules, chosen, left))


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if the page is not as it would be made")
    check = parser.parse_args(argv).check
    page, problems = make(_ROOT)
    if check and not problems and page != _read(_ROOT, _PAGE):
        problems = ["%s is not as tools/docs/troubleshooting.py makes it: run it" % _PAGE]
    for problem in problems:
        print(problem, file=sys.stderr)
    if not check:
        with open(os.path.join(_ROOT, _PAGE), "w", encoding="utf-8") as f:
            f.write(page)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
