// Order: the order in which a rank submits its operations of a phase.
//
// Any order is allowed, except among operations that ranks match by order:
// unnamed operations of one process set and kind, barriers (on which ranks
// block), unnamed operations and the barriers of their set (which compare their
// counts), requests for process sets.
//
// Thread contract: pure functions.
#ifndef MAYPOLE_TESTS_PROPERTIES_SPEC_ORDER_H_
#define MAYPOLE_TESTS_PROPERTIES_SPEC_ORDER_H_

#include <cstddef>
#include <vector>

#include "tests/properties/spec/spec.h"

namespace maypole::properties {

// One call: it submits an operation, a group of operations, or a request.
struct Unit {
  std::vector<size_t> operations;  // indexes in the program
  int request = -1;                // or this one
};

std::vector<Unit> OrderOf(const Program& program, int phase, int rank,
                          Random& random);

}  // namespace maypole::properties

#endif  // MAYPOLE_TESTS_PROPERTIES_SPEC_ORDER_H_
