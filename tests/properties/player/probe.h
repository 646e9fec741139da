// Probe: calls with wrong arguments. Each must be refused on the rank that
// makes it, by an error that says so, and leave no trace.
//
// Thread contract: one thread.
#ifndef MAYPOLE_TESTS_PROPERTIES_PLAYER_PROBE_H_
#define MAYPOLE_TESTS_PROPERTIES_PLAYER_PROBE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "client/api/client.h"
#include "tests/properties/spec/spec.h"

namespace maypole::properties {

// A process set that is there, and whether the rank is a member.
struct KnownSet {
  uint32_t id = 0;
  std::vector<int> ranks;
};

// Tries one of them; "" if it was refused as it must be. patience_ms: for those
// that only the agent can refuse.
std::string TryWrongCall(Client* client, int rank, int ranks,
                         const std::vector<KnownSet>& sets, int patience_ms,
                         Random& random);

}  // namespace maypole::properties

#endif  // MAYPOLE_TESTS_PROPERTIES_PLAYER_PROBE_H_
