"""`maypole-timeline FILE [-o PNG]`: which ranks were late for what."""

import argparse
import os
import sys
from typing import Optional

from maypole import _native
from maypole.timeline import drawing, summary, trace

_NO_MATPLOTLIB = ("maypole-timeline: -o needs matplotlib for %s: install it (apt install python3-matplotlib, "
                  "pip install matplotlib); the tables need nothing")


def main(argv: Optional[list[str]] = None) -> int:
    """Prints the tables and draws the picture; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="maypole-timeline",
        description="Shows the file of a job's timeline (MAYPOLE_TIMELINE, maypole.torch.start_timeline): prints which "
        "ranks were late for what, and draws all ranks. Perfetto (ui.perfetto.dev) opens the same file.")
    parser.add_argument("file", help="the timeline's file")
    parser.add_argument("-o", "--output", metavar="PNG", help="draw the timeline to this file")
    parser.add_argument("--version", action="version", version=_version())
    args = parser.parse_args(argv)
    try:
        loaded = trace.load(args.file)
    except (OSError, trace.NotATimeline) as error:
        print(f"maypole-timeline: {error}", file=sys.stderr)
        return 1
    print(summary.text(loaded))
    if args.output is None:
        return 0
    try:
        drawing.draw(loaded, args.output, os.path.basename(args.file))
    except ImportError:
        print(_NO_MATPLOTLIB % sys.executable, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"maypole-timeline: {args.output}: {error}", file=sys.stderr)
        return 1
    return 0


def _version() -> str:
    try:
        return "maypole-timeline " + _native.library().version()
    except ImportError:
        return "maypole-timeline (libmaypole is missing)"


if __name__ == "__main__":
    sys.exit(main())
