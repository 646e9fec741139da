#!/usr/bin/env python3
"""Makes docs/troubleshooting.md and docs/troubleshooting/ from the messages in the sources and docs/troubleshooting.src.

usage: tools/docs/troubleshooting.py [--check]     (--check: writes nothing)

docs/troubleshooting.src/NUMBER-NAME.md is the text of docs/troubleshooting/NAME.md; the first one, by number, is that of
docs/troubleshooting.md. Links in them are as seen from docs/, and `#HEADING` is a heading of any of these pages. In place of
messages they have blocks of rules (messages.py), one a line:

    ```messages
    its connection closed without shutdown
    = has shut down
    file: client/launcher/hosts/ssh.cc
    ```

which become the messages that these rules choose. not_messages.txt has rules for texts that are none: help texts,
names of metrics, output. It is an error if a text of the sources is chosen by no rule, a rule chooses none, or a rule is
there twice: the list of these is printed, with status 1. So no message can be missing.
"""

import argparse
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import messages  # noqa: E402

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_SOURCE = "docs/troubleshooting.src"
_ENTRY = "docs/troubleshooting.md"
_FOLDER = "docs/troubleshooting"
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


def slug(heading):
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _homes(sources):
    """{anchor: (page, anchor there)} of the headings; a page's title needs no anchor."""
    homes = {}
    for path, source in sources.items():
        for marks, heading in re.findall(r"^(##+) (.*)$", source, re.M):
            homes[slug(heading)] = (path, "" if marks == "##" else "#" + slug(heading))
    return homes


def _linked(path, source, homes):
    """The source with links as seen from the page."""
    def link(match):
        target = match.group(1)
        if target.startswith("#"):
            page, anchor = homes[target[1:]]
            return "](%s)" % (anchor if page == path and anchor else
                              os.path.relpath(page, os.path.dirname(path)) + anchor)
        if ":" in target:
            return match.group(0)
        name, mark, anchor = target.partition("#")
        return "](%s)" % (os.path.relpath(os.path.join("docs", name), os.path.dirname(path)) + mark + anchor)
    return re.sub(r"\]\(([^)\s]+)\)", link, source)


def make(root, found=None):
    """({path: page}, what is wrong: lines). found: the texts of the sources, if not those below `root`."""
    names = sorted(name for name in os.listdir(os.path.join(root, _SOURCE)) if name.endswith(".md"))
    paths = [_ENTRY] + ["%s/%s" % (_FOLDER, name.partition("-")[2]) for name in names[1:]]
    sources = {path: _read(root, os.path.join(_SOURCE, name)) for path, name in zip(paths, names)}
    rules = [rule for source in sources.values() for block in _BLOCK.findall(source) for rule in _rules(block.splitlines())]
    rules += _rules(_read(root, os.path.join(_SOURCE, "not_messages.txt")).splitlines())
    chosen, left = messages.assign(messages.texts(root) if found is None else found, list(dict.fromkeys(rules)))
    homes = _homes(sources)
    pages = {}
    for path, source in sources.items():
        page = re.sub(r"^#(#+) ", r"\1 ", _linked(path, source, homes), flags=re.M)
        pages[path] = _MADE + _BLOCK.sub(lambda m: _listed(_rules(m.group(1).splitlines()), chosen), page)
    return pages, list(_problems(rules, chosen, left))


def stale(root, pages):
    """The paths of pages that are not as they would be made, or are left from a subject that is gone."""
    there = {"%s/%s" % (_FOLDER, name) for name in os.listdir(os.path.join(root, _FOLDER))} | {_ENTRY}
    return sorted(path for path in there | set(pages)
                  if path not in pages or path not in there or pages[path] != _read(root, path))


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if the page is not as it would be made")
    check = parser.parse_args(argv).check
    pages, problems = make(_ROOT)
    if check and not problems:
        problems = ["%s is not as tools/docs/troubleshooting.py makes it: run it" % path for path in stale(_ROOT, pages)]
    for problem in problems:
        print(problem, file=sys.stderr)
    if not check:
        for path in stale(_ROOT, pages):
            if path not in pages:
                os.unlink(os.path.join(_ROOT, path))
                continue
            with open(os.path.join(_ROOT, path), "w", encoding="utf-8") as f:
                f.write(pages[path])
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
