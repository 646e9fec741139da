#!/bin/sh
# Creates a conda environment and installs Maypole in it:
#   deploy/conda/create-env.sh PREFIX WHEEL
# $CONDA names another program than conda, for example mamba or micromamba.
set -eu
here="$(cd "$(dirname "$0")" && pwd)"
[ $# = 2 ] || {
  echo "usage: create-env.sh PREFIX WHEEL" >&2
  exit 2
}
conda="${CONDA:-conda}"
command -v "$conda" >/dev/null || {
  echo "create-env: $conda is not installed, or not on PATH" >&2
  exit 1
}
"$conda" env create --prefix "$1" --file "$here/environment.yml"
exec "$here/post-build.sh" "$1" "$2"
