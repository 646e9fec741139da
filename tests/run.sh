#!/bin/sh
# Runs all tests; the last line is 'N passed, N failed' (', N skipped' if any).
#   tests/run.sh         installs missing packages, builds, runs all but the large and slow tests
#   tests/run.sh --all   also the tests of size "large" or tagged "slow", and all others once more
#                        under each sanitizer: asan, ubsan, tsan
# With CUDA's toolkit (nvcc in $CUDA_HOME/bin, /usr/local/cuda by default) it also
# builds and tests the GPU kernels, without it (or CUDA_HOME=none) what a build
# without them does; no GPU is needed.
set -u
cd "$(dirname "$0")/.."

all=no
case "${1:-}" in
  "") ;;
  --all) all=yes ;;
  *)
    echo "usage: tests/run.sh [--all]" >&2
    exit 2
    ;;
esac

deploy/setup.sh || {
  echo "0 passed, 1 failed"
  exit 1
}
. tools/ci/bazel.sh

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
passed=0 failed=0 skipped=0

# part NAME OPTION...: one run of bazel test, added to the sums. What it needs is
# built before, so that compilers have all cores and then tests have them.
part() {
  name="$1"
  shift
  echo "=== $name: build"
  bazel build --keep_going "$@" //...
  echo "=== $name"
  tools/ci/test.py --keep_going --local_test_jobs="$(nproc)" "$@" 2>&1 | tee "$work/log"
  counts="$(tail -n 1 "$work/log" |
    sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p')"
  set -- ${counts:-0 1 0}
  passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
  summary="${summary:-}$name: $1 passed, $2 failed, $3 skipped
"
}

echo "=== build"
deploy/build.sh || failed=1

# For Bazel, size "large" is a tag. Those are jobs of many processes.
part "tests" -c opt --test_tag_filters=-slow,-large
if [ "$all" = yes ]; then
  part "slow tests" -c opt --test_tag_filters=slow,large --build_tests_only
  for sanitizer in asan ubsan tsan; do
    part "$sanitizer" --config="$sanitizer" --build_tag_filters=-nosan \
      --test_tag_filters=-nosan,-slow,-large --build_tests_only
  done
fi

printf '%s' "$summary"
line="$passed passed, $failed failed"
[ "$skipped" = 0 ] || line="$line, $skipped skipped"
echo "$line"
[ "$failed" = 0 ]
