#!/bin/sh
# A day on a real GPU: everything that must be tried on one, in one call.
#   tests/gpu/day/day.sh build [DIR]          here: makes the folder to carry there (out/gpu-day)
#   DIR/day.sh run [--first] [PHASE...]       there: runs all phases, the most valuable ones first
#   tests/gpu/day/day.sh rehearse [PHASE...]  here, without a GPU: runs them from that folder, on
#                                             the fake driver and on CPU tensors
# run needs the NVIDIA driver and a python3 with torch, nothing else. It writes
# results.jsonl and day.log to $OUT (default: the current directory) as it goes,
# and a table of all phases at the end. --first: the phases that matter most, and
# shorter, within 4 minutes; otherwise all but `distributed`, within 9. PHASE: only these.
# docs/gpu-facts.md says how the results become its tables.
set -eu
here="$(cd "$(dirname "$0")" && pwd)"
most_bytes=$((50 << 20))

fail() {
  echo "day.sh: $1" >&2
  exit "${2:-1}"
}

usage() {
  fail "usage: day.sh build [DIR] | run [--first] [PHASE...] | rehearse [PHASE...]" 2
}

# gather DIR WHEEL CONFORMANCE FIGURES: puts all parts in their places. Also for
# tests, which have built them.
gather() {
  [ "$(dirname "$2")" != "$1" ] || fail "$2 is in $1, whose wheel is replaced; give one from elsewhere" 2
  rm -rf "$1/tests" "$1"/*.whl
  mkdir -p "$1/tests/gpu" "$1/tests/testing" "$1/tests/bench" "$1/tests/programs"
  cp "$2" "$1/"
  cp "$3" "$1/conformance"
  cp "$4" "$1/figures"
  tests="$here/../.."
  cp -LR "$here" "$tests/gpu/programs" "$1/tests/gpu/"
  cp -LR "$tests/programs/torch_distributed" "$1/tests/programs/"
  cp -L "$tests/testing/harness.py" "$tests/testing/rank.py" "$1/tests/testing/"
  for name in cases pattern report resnet50; do
    cp -L "$tests/bench/$name.py" "$1/tests/bench/"
  done
  find "$1/tests" -name __pycache__ -prune -exec rm -rf {} +
  cp -L "$here/day.sh" "$1/day.sh"
  chmod -R u+w,a+rX "$1"
  chmod 755 "$1/conformance" "$1/figures" "$1/day.sh"
  bytes="$(du -sb "$1" | cut -f1)"
  echo "day.sh: $1 has $bytes bytes"
  [ "$bytes" -le "$most_bytes" ] || fail "more than the $most_bytes bytes that it may have"
}

build() {
  mkdir -p "$1"
  directory="$(cd "$1" && pwd)"
  cd "$here/../../.."
  work="$(mktemp -d)"
  trap 'rm -rf "$work"' EXIT
  # All parts with the nvcc that the wheel has, also where this machine has none.
  CUDA_HOME="$(PYTHONPATH=tools/packages /usr/bin/python3 -c 'import cuda_toolkit; print(cuda_toolkit.home())')"
  export CUDA_HOME
  deploy/make-wheel.sh "$work"
  tests/gpu/run.sh --bundle "$work"
  gather "$directory" "$work"/maypole-[0-9]*.whl "$work/conformance" "$work/figures"
}

rehearse() {
  fakes="${MAYPOLE_DAY_FAKES:-}"
  if [ -z "$fakes" ]; then
    cd "$here/../../.."
    . tools/ci/bazel.sh
    bazel build -c opt //tests/gpu/fake:libcuda.so.1 //tests/gpu/fake_nccl:libnccl.so.2
    fakes="$(bazel info -c opt bazel-bin 2>/dev/null)/tests/gpu"
    cd "$OLDPWD"
  fi
  directory="${MAYPOLE_DAY_FOLDER:-$here/../../../out/gpu-day}"
  [ -f "$directory/tests/gpu/day/run.py" ] || fail "$directory is not there: make it by day.sh build"
  exec "${PYTHON:-python3}" -B "$directory/tests/gpu/day/run.py" --rehearse="$fakes" "$@"
}

[ $# -gt 0 ] || usage
what="$1"
shift
case "$what" in
  build)
    [ $# -le 1 ] || usage
    build "${1:-$here/../../../out/gpu-day}"
    ;;
  gather)
    [ $# = 4 ] || usage
    gather "$@"
    ;;
  run)
    [ -f "$here/tests/gpu/day/run.py" ] || fail "$here is not a folder that day.sh build has made"
    exec "${PYTHON:-python3}" -B "$here/tests/gpu/day/run.py" "$@"
    ;;
  rehearse) rehearse "$@" ;;
  *) usage ;;
esac
