#!/bin/sh
# Builds Maypole and makes its wheel in OUTDIR (default: out/packages).
#   deploy/make-wheel.sh [OUTDIR]
set -eu
root="$(cd "$(dirname "$0")/.." && pwd)"
exec /usr/bin/python3 "$root/tools/packages/backend.py" wheel "${1:-$root/out/packages}"
