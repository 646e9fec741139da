// Reference: the results that a rank must get, computed in the simplest way.
//
// One element after the other, by the rules of docs/design.md and maypole.h:
// within a node in the order of ranks; over several nodes each node's part
// first, in the tensor's dtype, then the parts in the order of nodes. Parts of
// a sum of float16 with a factor below 1 (an average's divisor, postscale) are
// smaller by a power of two, 2^-n with 2^-n <= factor < 2^(1-n). float16
// and bfloat16 accumulate in float32, and round once for each node's part and
// once at the end; a prescaled input is rounded to the tensor's dtype. Integers
// wrap, an average of integers truncates toward zero. Ranks that stand aside
// are left out, but an average divides by the number of all ranks. Shares no
// code with the kernels: narrow_float.h reads and writes half and bfloat16.
//
// Thread contract: pure functions.
#ifndef MAYPOLE_TESTS_PROPERTIES_SPEC_REFERENCE_H_
#define MAYPOLE_TESTS_PROPERTIES_SPEC_REFERENCE_H_

#include <cstdint>
#include <vector>

#include "tests/properties/spec/spec.h"
#include "tests/properties/spec/values.h"

namespace maypole::properties {

// The operation's result for a global rank that it concerns.
Bytes ResultOf(const OperationSpec& spec, int rank);

// The rows of that result, for an allgather, alltoall or reducescatter.
int64_t ResultRows(const OperationSpec& spec, int rank);

// For an alltoall: the rows received from each rank of the set.
std::vector<int64_t> ReceivedSplits(const OperationSpec& spec, int rank);

// Makes all NaNs of float elements equal, because their bits are unspecified.
void SameNans(DType dtype, Bytes* values);

}  // namespace maypole::properties

#endif  // MAYPOLE_TESTS_PROPERTIES_SPEC_REFERENCE_H_
