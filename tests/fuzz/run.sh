#!/bin/sh
# A long run of a fuzzer (clang's libFuzzer with asan and ubsan):
#   tests/fuzz/run.sh TARGET EXECUTIONS [CORPUS]
# as  tests/fuzz/run.sh board_fuzz 10000000
# Begins with the committed corpus and adds new inputs to CORPUS (a new directory
# if none is given). Stops at the first error, and leaves the input in
# CORPUS.crashes/. MAYPOLE_FUZZER: a fuzzer that is already built;
# MAYPOLE_FUZZ_SECONDS: time limit.
# MAYPOLE_FUZZ_CONFIG=fuzz-fast: without asan. SIGUSR1 makes the fuzzer end normally.
# The last line: target, executions, seconds, corpus, coverage, result.
set -u
cd "$(dirname "$0")/../.."
target="${1:?usage: tests/fuzz/run.sh TARGET EXECUTIONS [CORPUS]}"
runs="${2:?usage: tests/fuzz/run.sh TARGET EXECUTIONS [CORPUS]}"
corpus="${3:-$(mktemp -d)}"
program="${MAYPOLE_FUZZER:-}"
if [ -z "$program" ]; then
  . tools/ci/bazel.sh
  config="${MAYPOLE_FUZZ_CONFIG:-fuzz}"
  bazel build "--config=$config" "//tests/fuzz:$target" || exit 1
  program="$(bazel info "--config=$config" bazel-bin)/tests/fuzz/$target"
fi
mkdir -p "$corpus" "$corpus.crashes"
log="$corpus.log"

# max_len: sequences of a few hundred events. An execution may take 25 s, 2 GiB.
# entropic: libFuzzer's own bookkeeping would take half of the time.
# Freed memory stays poisoned for about an execution; stacks of allocations are
# left out (replay the input that failed without ASAN_OPTIONS to see them).
export ASAN_OPTIONS="quarantine_size_mb=1:malloc_context_size=0:max_malloc_fill_size=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
start="$(date +%s)"
"$program" -runs="$runs" -max_total_time="${MAYPOLE_FUZZ_SECONDS:-0}" \
  -entropic=0 -max_len=512 -timeout=25 -rss_limit_mb=2048 \
  -print_final_stats=1 -artifact_prefix="$corpus.crashes/" \
  "$corpus" "tests/fuzz/corpus/$target" >"$log" 2>&1
status=$?
end="$(date +%s)"

executed="$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")"
coverage="$(sed -n 's/.* cov: \([0-9]*\) ft: \([0-9]*\) .*/cov=\1 ft=\2/p' "$log" | tail -n 1)"
result=clean
[ "$status" = 0 ] || {
  result="failed, status $status, see $log"
  tail -n 40 "$log"
}
[ "${executed:-0}" -ge "$runs" ] 2>/dev/null || [ "$result" != clean ] ||
  result="clean, ended early"
echo "$target: executions=${executed:-?} seconds=$((end - start))" \
  "corpus=$(find "$corpus" -type f | wc -l) ${coverage:-} $result"
exit "$status"
