// Versions of the protocol, and the choice of the version that peers use.
//
// Purpose: the parts of Maypole (libmaypole in the training processes, agents,
// coordinators) are upgraded one after the other, while jobs run. So each side
// announces the range of versions that it speaks; the smallest of their newest
// versions is used, if all sides speak it.
//
//   uint32_t version;
//   Status s = ChooseVersion({{"the agent of node n1", {1, 2}},
//                             {"libmaypole of rank 3", {1, 1}}},
//                            &version);
//   // ok: version == 1. Otherwise s says whose ranges do not meet, and whom
//   // to upgrade.
//
// A message that is newer than the oldest version is sent only if the chosen
// version has it. There is one version so far: tests of the choice invent the
// next.
//
// Thread contract: values and pure functions.
#ifndef MAYPOLE_COMMON_WIRE_VERSIONS_H_
#define MAYPOLE_COMMON_WIRE_VERSIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/limits.h"
#include "common/status.h"

namespace maypole {

struct VersionRange {
  uint32_t oldest = 0;
  uint32_t newest = 0;

  bool Has(uint32_t version) const {
    return oldest <= version && version <= newest;
  }
  friend bool operator==(const VersionRange&, const VersionRange&) = default;
};

inline constexpr VersionRange kProtocolVersions = {kOldestProtocolVersion,
                                                   kProtocolVersion};

struct Speaker {
  std::string name;  // "the agent of node n1"
  VersionRange versions;
};

// "protocol version 1", "protocol versions 1 to 2"
std::string VersionsText(VersionRange versions);

// Chooses the version that the speakers use with one another. If there is none:
// kFailedPrecondition, with the ranges of two of them and which to upgrade;
// kInvalidArgument if a range is not one. `speakers`: at least one.
Status ChooseVersion(const std::vector<Speaker>& speakers, uint32_t* version);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_WIRE_VERSIONS_H_
