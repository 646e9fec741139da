#!/bin/sh
# conda-build runs this in the directory of `source`, with PYTHON that of the
# environment that it makes the package from.
set -eu
exec "$PYTHON" -m pip install --no-deps --no-index --no-build-isolation maypole-"$PKG_VERSION"-py3-none-manylinux*.whl
