#!/bin/sh
# Makes the source distribution of Maypole in OUTDIR (default: out/packages).
#   deploy/make-sdist.sh [OUTDIR]
set -eu
root="$(cd "$(dirname "$0")/.." && pwd)"
exec /usr/bin/python3 "$root/tools/packages/backend.py" sdist "${1:-$root/out/packages}"
