#!/bin/sh
# Runs all tests; the last line is 'N passed, N failed' (', N skipped' if any).
#   tests/run.sh                    installs missing packages, builds, runs all but the large and slow tests
#   tests/run.sh --times            the same, and says where the time went (docs/testing.md)
#   tests/run.sh --all              also the tests of size "large" or tagged "slow", and all others once
#                                   more under asan with ubsan, and under tsan
#   tests/run.sh --all --shard=I/N  part I of N of the tests of --all
# --all and its shards go on where they were cut off at the same commit (docs/testing.md).
# With CUDA's toolkit (nvcc in $CUDA_HOME/bin, /usr/local/cuda by default) it also
# builds and tests the GPU kernels, without it (or CUDA_HOME=none) what a build
# without them does; no GPU is needed.
set -u
cd "$(dirname "$0")/.."

all=no shard="" times=no
for option in "$@"; do
  case "$option" in
    --all) all=yes ;;
    --shard=?*/?*) shard="${option#--shard=}" ;;
    --times) times=yes ;;
    *) all=usage && break ;;
  esac
done
case "$all$times${shard:+shard}" in
  nono | noyes | yesno | yesnoshard) ;;
  *)
    echo "usage: tests/run.sh [--times | --all [--shard=I/N]]" >&2
    exit 2
    ;;
esac

deploy/setup.sh build run test || {
  echo "0 passed, 1 failed"
  exit 1
}
. tools/ci/bazel.sh

[ -z "$shard" ] || exec tests/shards.py run "$shard"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
failed=0

# What tests need is built before, so that compilers have all cores and then tests have them.
echo "=== build"
bazel build --keep_going --profile="$work/build.gz" -c opt //...
built=$?
deploy/build.sh || failed=1

if [ "$all" = yes ]; then
  [ "$built" = 0 ] || failed=$((failed + 1)) # test.py, below, sees it itself
  tests/shards.py run 1/1 2>&1 | tee "$work/log"
else
  # For Bazel, size "large" is a tag. Those are jobs of many processes.
  set -- -c opt --test_tag_filters=-slow,-large
  [ "$times" = no ] || set -- "$@" --run_under=//tools/ci:cpu --profile="$work/test.gz"
  echo "=== tests"
  tools/ci/test.py --results="$work/results" --keep_going --local_test_jobs="$(nproc)" "$@" 2>&1 | tee "$work/log"
  [ "$times" = no ] || tools/ci/times.py "$work/build.gz" "$work/test.gz" "$work/results" docs/testing.md
fi

counts="$(tail -n 1 "$work/log" |
  sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p')"
set -- ${counts:-0 1 0}
failed=$((failed + $2))
line="$1 passed, $failed failed"
[ "$3" = 0 ] || line="$line, $3 skipped"
echo "$line"
[ "$failed" = 0 ]
