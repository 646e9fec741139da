// Probe: calls with wrong arguments. Each must be refused on the calling rank
// with an error that names the problem, and must have no other effect.
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

// An existing process set, and whether the rank is a member.
struct KnownSet {
  uint32_t id = 0;
  std::vector<int> ranks;
};

// Makes one such call; returns "" if it was refused correctly. patience_ms: for
// calls that only the agent can refuse.
std::string TryWrongCall(Client* client, int rank, int ranks,
                         const std::vector<KnownSet>& sets, int patience_ms,
                         Random& random);

}  // namespace maypole::properties

#endif  // MAYPOLE_TESTS_PROPERTIES_PLAYER_PROBE_H_
