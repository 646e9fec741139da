"""Makes the manual pages from what the programs print for --help, so that both always agree.

deploy/man/PROGRAM.h2m has the sections that --help does not have (help2man --include).
"""

import gzip
import os
import re
import stat
import subprocess
import tempfile

import metadata

# Section 8 is that of daemons.
SECTIONS = {"maypolerun": 1, "maypolectl": 1, "maypole-node-ranks": 1, "maypole-timeline": 1,
            "maypole-coordinator": 8, "maypole-worker": 8}
_MANUALS = {1: "User Commands", 8: "System Administration"}


def pages(commands, when, root=metadata.ROOT):
    """{name: gzipped page} of programs.

    commands: {name in SECTIONS: command that starts it}. when: the pages' time, in seconds since 1970.
    """
    made = {}
    for name, command in commands.items():
        text, examples = help2man_text(name, _said(command, "--help"))
        page = _page(name, {"help": text, "version": _said(command, "--version"), "examples": examples}, when, root)
        made[name] = gzip.compress(page, mtime=0)
    return made


def _said(command, option):
    return subprocess.run(command + [option], check=True, stdout=subprocess.PIPE, text=True,
                          env=dict(os.environ, COLUMNS="80", LC_ALL="C.UTF-8")).stdout


def help2man_text(name, text):
    """The text of --help, of CommandLine's or of argparse's form, in the one that help2man reads; and its examples as
    a file of --include ("" if there are none).

    The usage becomes one line, and each paragraph after the options a section: of its title, or of notes.
    """
    usage, parts, examples, options_seen = "", [], "", False
    for block in re.split(r"\n\n+", text.strip("\n")):
        head, _, rest = block.partition("\n")
        if head.lower().startswith("usage:"):
            usage = "Usage: " + " ".join(block.split()[1:])
        elif head in ("Example:", "Examples:"):
            examples = _verbatim(rest)
        elif head in ("Options:", "options:"):
            parts.append("Options:\n" + rest)
            options_seen = True
        elif head in ("Commands:", "positional arguments:"):
            parts.append("*%s*\n\n%s" % (head.split()[-1].rstrip(":").title(), rest))
        elif not parts:
            text = block[len(name) + 2:] if block.startswith(name + ": ") else block
            parts.append(text[0].upper() + text[1:])
        else:
            parts.append(_section(block) if options_seen else block)
    return "\n\n".join([usage] + parts) + "\n", examples


def _verbatim(lines):
    text = lines.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    # Less indented than other text, so that lines of 75 columns fit.
    return "[EXAMPLES]\n.in -4n\n.nf\n%s\n.fi\n.in\n" % "\n".join(line[2:] for line in text.splitlines())


def _section(block):
    """"Title: text" or "Title (of what): text" as a section; other text as notes."""
    titled = re.match(r"([A-Z][a-z]+(?: [a-z]+)*)(?: \(([^)]*)\))?:\s", block)
    if not titled:
        return "*Notes*\n\n" + block
    title, what = titled.groups()
    return "*%s*\n\n%s%s" % (title, what + ": " if what else "", block[titled.end():])


def _page(name, texts, when, root):
    with tempfile.TemporaryDirectory() as work:
        for file, text in texts.items():
            with open(os.path.join(work, file), "w", encoding="utf-8") as f:
                f.write(text)
        program = os.path.join(work, name)
        with open(program, "w", encoding="utf-8") as f:
            f.write('#!/bin/sh\nexec cat "$(dirname "$0")/${1#--}"\n')
        os.chmod(program, stat.S_IRWXU)
        includes = [os.path.join(root, "deploy", "man", name + ".h2m")] + [work + "/examples"] * bool(texts["examples"])
        page = subprocess.run(
            ["help2man", "--no-info", "--section=%d" % SECTIONS[name], "--manual=" + _MANUALS[SECTIONS[name]],
             "--source=Maypole " + metadata.version(root)] + ["--include=" + path for path in includes] + [program],
            check=True, stdout=subprocess.PIPE, env=dict(os.environ, SOURCE_DATE_EPOCH=str(when), TZ="UTC")).stdout
    # Names of options must not be hyphenated.
    page = re.sub(rb"^(\.TH .*\n)", rb"\1.nh\n.ad l\n", page, count=1, flags=re.M)
    head, commands, rest = page.partition(b".SH COMMANDS\n")
    return head + commands + _below_commands(rest)


def _below_commands(section):
    """Indents the options that stand below a command, up to the next section."""
    option = rb"\.TP\n\\fB\\-.*\n(?:[^.].*\n)*"
    text, heading, rest = section.partition(b".SH ")
    return re.sub(rb"(?:%s)+" % option, rb".RS\n\g<0>.RE\n", text) + heading + rest
