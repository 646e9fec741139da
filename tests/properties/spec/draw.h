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

// Whether there is such an operation on such elements, with such factors. What
// the library itself says of it is not asked: that is under test.
bool Exists(const Signature& s);

Kind DrawKind(Random& random);

// Everything but name and group; now and then one that must fail.
OperationSpec DrawOperation(Random& random, const World& world,
                            const Place& place, Kind kind);
// One that ends when all ranks have submitted it, and well.
OperationSpec DrawClosing(Random& random, const World& world,
                          const Place& place);

// `s` with another value of the aspect, one that a rank may submit; `s` itself
// if there is none. ranks: of the process set.
Signature Altered(const Signature& s, Aspect aspect,
                  const std::vector<int>& ranks);

}  // namespace maypole::properties

#endif  // MAYPOLE_TESTS_PROPERTIES_SPEC_DRAW_H_
