#!/bin/sh
# bazel test --run_under=//tools/ci:cpu TEST: the log's last line says how much
# processor time the test took, with all processes that it waited for.
"$@"
status=$?
echo "cpu:"
times
exit "$status"
