"""Writes files into a C++ source, as what Assets() of assets.h returns.

usage: embed.py OUTPUT PATH=FILE ...
"""

import sys

TYPES = {"html": "text/html; charset=utf-8", "js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8",
         "svg": "image/svg+xml"}


def main():
    output, pairs = sys.argv[1], [pair.split("=", 1) for pair in sys.argv[2:]]
    lines = ['#include "coordinator/dashboard/assets.h"', "", "namespace maypole::coordinator {", "namespace {", ""]
    for i, (_, file) in enumerate(pairs):
        with open(file, "rb") as f:
            data = f.read()
        lines.append("const unsigned char kBytes%d[] = {" % i)
        lines += [",".join(map(str, data[at:at + 64])) + "," for at in range(0, len(data), 64)]
        lines.append("};")
    lines += ["", "}  // namespace", "", "const std::vector<Asset>& Assets() {",
              "  static const auto& all = *new std::vector<Asset>{"]
    for i, (path, file) in enumerate(pairs):
        lines.append('      {"%s", "%s", {reinterpret_cast<const char*>(kBytes%d), sizeof(kBytes%d)}},'
                     % (path, TYPES[file.rsplit(".", 1)[1]], i, i))
    lines += ["  };", "  return all;", "}", "", "}  // namespace maypole::coordinator", ""]
    with open(output, "w") as f:
        f.write("\n".join(lines))


if __name__ == "__main__":
    main()
