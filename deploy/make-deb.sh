#!/bin/sh
# Makes the Debian packages of what deploy/build.sh has built, in OUTDIR (default:
# out/packages): maypole, python3-maypole, and maypole-coordinator and
# maypole-worker, the services.
#   deploy/make-deb.sh [OUTDIR]
set -eu
root="$(cd "$(dirname "$0")/.." && pwd)"
exec /usr/bin/python3 "$root/tools/packages/deb.py" "${1:-$root/out/packages}"
