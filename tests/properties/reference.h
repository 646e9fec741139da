// Reference: what a rank submits and what it must get, computed plainly.
//
// One element after the other, in rank order, by the rules of docs/design.md:
// float16 and bfloat16 accumulate in float32 and round once, integers wrap, an
// average of integers truncates toward zero. Shares no code with the kernels
// but the conversions of half and bfloat16 (which have a test of their own).
//
// Thread contract: pure functions.
#ifndef MAYPOLE_TESTS_PROPERTIES_REFERENCE_H_
#define MAYPOLE_TESTS_PROPERTIES_REFERENCE_H_

#include <cstddef>
#include <vector>

#include "tests/properties/spec.h"

namespace maypole::properties {

using Bytes = std::vector<std::byte>;

// The input of a rank.
Bytes InputOf(const OperationSpec& spec, int rank);

// The result, the same for every rank.
Bytes ResultOf(const OperationSpec& spec, int ranks);

}  // namespace maypole::properties

#endif  // MAYPOLE_TESTS_PROPERTIES_REFERENCE_H_
