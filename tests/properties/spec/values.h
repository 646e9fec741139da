// Values: the inputs of an operation's ranks; equal seeds give equal values.
//
// Thread contract: pure functions.
#ifndef MAYPOLE_TESTS_PROPERTIES_SPEC_VALUES_H_
#define MAYPOLE_TESTS_PROPERTIES_SPEC_VALUES_H_

#include <cstddef>
#include <vector>

#include "tests/properties/spec/spec.h"

namespace maypole::properties {

using Bytes = std::vector<std::byte>;

// The input of a global rank, in the shape of its signature.
Bytes InputOf(const OperationSpec& spec, int rank);

}  // namespace maypole::properties

#endif  // MAYPOLE_TESTS_PROPERTIES_SPEC_VALUES_H_
