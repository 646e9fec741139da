// All tests, compiled at once: GoogleTest's header takes longer than the tests.
#include "tests/gpu/conformance/capture_test.cc"
#include "tests/gpu/conformance/kernels_test.cc"
#include "tests/gpu/conformance/main.cc"
#include "tests/gpu/conformance/memory_test.cc"
#include "tests/gpu/conformance/sharing_test.cc"
#include "tests/gpu/conformance/words_test.cc"
