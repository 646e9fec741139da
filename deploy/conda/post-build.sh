#!/bin/sh
# Installs Maypole's wheel in an environment of conda (or a venv) that exists,
# and sees that a job of two ranks runs in it:
#   deploy/conda/post-build.sh PREFIX WHEEL
set -eu
[ $# = 2 ] || {
  echo "usage: post-build.sh PREFIX WHEEL" >&2
  exit 2
}
python="$1/bin/python"
[ -x "$python" ] || {
  echo "post-build: there is no Python in $1: create the environment first (create-env.sh)" >&2
  exit 1
}

# --no-deps: the frameworks are conda's, and pip must not replace them.
"$python" -m pip install --no-deps "$2"

# The daemons use the system's libraries. conda's, put in front of those by
# LD_LIBRARY_PATH, can keep them from starting.
[ -z "${LD_LIBRARY_PATH:-}" ] ||
  echo "post-build: LD_LIBRARY_PATH is set; if maypolerun does not start, unset it" >&2

"$1/bin/maypolerun" -np 2 "$python" -c '
from maypole.common import basics
basics.init()
print("rank", basics.rank(), "of", basics.size())
basics.shutdown()'
