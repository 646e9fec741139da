// Order: in which order a rank submits what a phase has for it.
//
// Any, but for what ranks match by order: unnamed operations of one process set
// and kind, barriers (on which ranks block), unnamed operations and the
// barriers of their set (which compare their counts), requests for process
// sets.
//
// Thread contract: pure functions.
#ifndef MAYPOLE_TESTS_PROPERTIES_SPEC_ORDER_H_
#define MAYPOLE_TESTS_PROPERTIES_SPEC_ORDER_H_

#include <cstddef>
#include <vector>

#include "tests/properties/spec/spec.h"

namespace maypole::properties {

// What is submitted by one call: operations (several: a group) or a request.
struct Unit {
  std::vector<size_t> operations;  // indexes in the program
  int request = -1;                // or this one
};

std::vector<Unit> OrderOf(const Program& program, int phase, int rank,
                          Random& random);

}  // namespace maypole::properties

#endif  // MAYPOLE_TESTS_PROPERTIES_SPEC_ORDER_H_
