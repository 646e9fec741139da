#!/bin/sh
# The GPU tests and figures, on a machine with a real NVIDIA driver.
#   tests/gpu/run.sh --bundle DIR               builds them, with CUDA's kernels, into DIR
#                                               (needs nvcc, but no GPU)
#   tests/gpu/run.sh --check [DIR] [OPTION...]  runs the conformance suite; options are GoogleTest's
#   tests/gpu/run.sh --figures [DIR] [--json=FILE] [--quick]
#                                               measures (docs/gpu-facts.md)
# DIR contains a copy of this script and runs on any machine with a driver and
# glibc 2.36 or newer. Without DIR: the directory of this script, if it is such
# a copy; otherwise a bundle is built for this run.
# Ends with status 3 and one line if there is no usable driver.
set -eu

here="$(cd "$(dirname "$0")" && pwd)"

fail() {
  echo "run.sh: $1" >&2
  exit "${2:-1}"
}

usage() {
  fail "usage: run.sh --bundle DIR | --check [DIR] [OPTION...] | --figures [DIR] [--json=FILE] [--quick]" 2
}

# bundle DIR [CONFORMANCE FIGURES]: copies the two programs, which are built if
# they are not given.
bundle() {
  mkdir -p "$1"
  directory="$(cd "$1" && pwd)"
  if [ $# = 1 ]; then
    cuda="${CUDA_HOME:-/usr/local/cuda}"
    [ -x "$cuda/bin/nvcc" ] || fail "no nvcc in $cuda/bin; set CUDA_HOME"
    root="$here/../.."
    cd "$root"
    . tools/ci/bazel.sh
    bazel build -c opt //tests/gpu/conformance //tests/gpu/figures
    set -- "$directory" bazel-bin/tests/gpu/conformance/conformance bazel-bin/tests/gpu/figures/figures
  fi
  [ $# = 3 ] || usage
  rm -f "$directory/conformance" "$directory/figures" "$directory/run.sh"
  cp "$2" "$directory/conformance"
  cp "$3" "$directory/figures"
  cp "$here/run.sh" "$directory/run.sh"
  chmod 755 "$directory/conformance" "$directory/figures" "$directory/run.sh"
}

# start PROGRAM [DIR] [OPTION...]
start() {
  program="$1"
  shift
  case "${1:--}" in
    -*) directory="$here" ;;
    *)
      directory="$1"
      shift
      [ -f "$directory/$program" ] || fail "$directory is no bundle: it has no program $program" 2
      ;;
  esac
  if [ -f "$directory/$program" ]; then
    exec "$directory/$program" "$@"
  fi
  temporary="$(mktemp -d)"
  trap 'rm -rf "$temporary"' EXIT
  (bundle "$temporary")
  "$temporary/$program" "$@"
}

[ $# -gt 0 ] || usage
what="$1"
shift
case "$what" in
  --bundle)
    [ $# -gt 0 ] || usage
    bundle "$@"
    ;;
  --check) start conformance "$@" ;;
  --figures) start figures "$@" ;;
  *) usage ;;
esac
