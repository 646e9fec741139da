#!/usr/bin/python3
"""Makes libraries to link with in place of the C library's: they have the symbols of an older glibc, and no code.

    stubs.py --glibc=2.28 --cc=gcc OUTDIR

A program takes the newest version of each symbol that it links with, so it needs
a glibc at least as new as the one it was linked with. The libraries made here
have of the symbols of this machine's glibc only those versions that the old glibc
had, too: what is linked with them runs with every glibc from then on. What the
old glibc lacks is an error at link time (compat.c has what programs need of it).

OUTDIR gets libc.so.6 and its companions, and the names that the linker looks for
(libc.so is a linker script: GNU ld and gold look for the files that it names in
the directories of -L).
"""

import argparse
import os
import re
import subprocess

# The libraries of one glibc; newer ones have all but libm and libresolv in libc.
LIBRARIES = ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libresolv.so.2")
LOADERS = ("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1")

# What dynamic linkers map into memory has no code; a function is one address.
_FUNCTION = ".text\n.type {label}, %function\n.size {label}, 4\n{label}: .skip 4\n"
_THREAD_LOCAL = '.section .tdata,"awT",%progbits\n.type {label}, %tls_object\n.size {label}, {size}\n{label}: .skip {size}\n'


class Symbol:
    """One version of a symbol of a library: a line of readelf --dyn-syms."""

    def __init__(self, words):
        self.address = int(words[1], 16)
        self.size = int(words[2], 0)
        self.kind = words[3]
        self.is_weak = words[4] == "WEAK"
        self.name, _, version = words[7].partition("@")
        self.version = version.lstrip("@")

    def number(self):
        """(2, 28) of GLIBC_2.28; None of GLIBC_PRIVATE and of other kinds."""
        if not re.fullmatch(r"GLIBC_2[0-9.]+", self.version):
            return None
        return tuple(map(int, self.version[len("GLIBC_"):].split(".")))


def symbols(library, newest):
    """The versions of symbols in a library that glibc `newest` has, too: {name: [oldest, ..., newest]}."""
    text = subprocess.run(["readelf", "--dyn-syms", "--wide", library], check=True, stdout=subprocess.PIPE, text=True).stdout
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < 8 or not words[0][:-1].isdigit() or "@" not in words[7] or words[6] in ("UND", "ABS"):
            continue
        symbol = Symbol(words)
        if symbol.number() and symbol.number() <= newest:
            found.setdefault(symbol.name, []).append(symbol)
    return {name: sorted(versions, key=Symbol.number) for name, versions in sorted(found.items())}


def assembly(found):
    """The source of a library with these symbols."""
    text = []
    variables = {}  # by address: names of one variable (environ, __environ) remain names of one variable
    for count, (symbol, is_newest) in enumerate((s, s is versions[-1]) for versions in found.values() for s in versions):
        label = "stub_%d" % count
        text.append(".%s %s\n.symver %s, %s%s%s\n" % ("weak" if symbol.is_weak else "globl", label, label, symbol.name,
                                                      "@@" if is_newest else "@", symbol.version))
        if symbol.kind == "OBJECT":
            variables.setdefault(symbol.address, []).append((label, symbol.size))
        else:
            text.append((_THREAD_LOCAL if symbol.kind == "TLS" else _FUNCTION).format(label=label, size=symbol.size))
    text.append(".data\n")
    for names in variables.values():
        text.append(".balign 32\n")
        text += [".type {0}, %object\n.size {0}, {1}\n{0}:\n".format(label, size) for label, size in names]
        text.append(".skip %d\n" % max(1, *(size for _, size in names)))
    text.append('.section .note.GNU-stack,"",%progbits\n')
    return "".join(text)


def version_script(found):
    """What defines the versions, each on top of the one before."""
    versions = sorted({(s.number(), s.version) for of_name in found.values() for s in of_name}) or [((2, 0), "GLIBC_2.0")]
    text, before = "", ""
    for _, version in versions:
        text += "%s {%s}%s;\n" % (version, "" if before else " local: stub_*; ", before)
        before = " " + version
    return text


def make(name, library, newest, cc, path):
    """Makes the stub of one library at `path`."""
    found = symbols(library, newest)
    for suffix, text in ((".s", assembly(found)), (".map", version_script(found))):
        with open(path + suffix, "w", encoding="utf-8") as f:
            f.write(text)
    subprocess.run(cc + ["-shared", "-nostdlib", "-Wl,-soname=" + name, "-Wl,--version-script=" + path + ".map",
                         "-Wl,--build-id=none", "-o", path, path + ".s"], check=True)
    os.remove(path + ".s")
    os.remove(path + ".map")


def path_of(name, cc):
    """Where the compiler finds a library; None if it has none of this name."""
    path = subprocess.run(cc + ["-print-file-name=" + name], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    return os.path.realpath(path) if os.path.isabs(path) else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--glibc", required=True, help="the oldest glibc that has to do, for example 2.28")
    parser.add_argument("--cc", required=True, help="the compiler")
    parser.add_argument("out")
    args = parser.parse_args()
    newest = tuple(map(int, args.glibc.split(".")))
    cc = args.cc.split()
    (loader,) = [name for name in LOADERS if path_of(name, cc)]
    for name in LIBRARIES:
        make(name, path_of(name, cc), newest, cc, os.path.join(args.out, name))
    make(loader, path_of(loader, cc), newest, cc, os.path.join(args.out, "loader.so"))
    for name in LIBRARIES[1:]:
        with open(os.path.join(args.out, name.partition(".so")[0] + ".so"), "w", encoding="utf-8") as f:
            f.write("INPUT ( %s )\n" % name)
    with open(os.path.join(args.out, "libc.so"), "w", encoding="utf-8") as f:
        f.write("GROUP ( libc.so.6 libcompat.a %s AS_NEEDED ( loader.so ) )\n" % path_of("libc_nonshared.a", cc))


if __name__ == "__main__":
    main()
