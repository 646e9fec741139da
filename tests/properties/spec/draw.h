// Draw: one random operation of a program.
//
// Thread contract: pure functions.
#ifndef MAYPOLE_TESTS_PROPERTIES_SPEC_DRAW_H_
#define MAYPOLE_TESTS_PROPERTIES_SPEC_DRAW_H_

#include <cstdint>
#include <vector>

#include "tests/properties/spec/spec.h"

namespace maypole::properties {

// Where the operation belongs. At least one of `ranks` is not in `aside`.
struct Place {
  int set = 0;
  std::vector<int> ranks;
  uint64_t aside = 0;
  int phase = 0;
};

// Whether this operation exists for these elements and factors. This does not
// ask the library, because the library is under test.
bool Exists(const Signature& s);

Kind DrawKind(Random& random);

// Draws everything except name and group; sometimes an operation that must
// fail.
OperationSpec DrawOperation(Random& random, const World& world,
                            const Place& place, Kind kind);
// Draws an operation that succeeds when all ranks have submitted it.
OperationSpec DrawClosing(Random& random, const World& world,
                          const Place& place);

// Returns `s` with another value of the aspect that a rank may submit; `s`
// itself if there is none. ranks: of the process set.
Signature Altered(const Signature& s, Aspect aspect,
                  const std::vector<int>& ranks);

}  // namespace maypole::properties

#endif  // MAYPOLE_TESTS_PROPERTIES_SPEC_DRAW_H_
