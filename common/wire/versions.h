// Versions of the protocol, and which one two sides use.
//
// Purpose: the parts of Maypole (libmaypole in the training processes, agents,
// coordinators) are upgraded one after the other, while jobs run. So each side
// announces the range of versions that it speaks; used is the smallest of the
// newest ones, if all sides speak it.
//
//   uint32_t version;
//   Status s = ChooseVersion({{"the agent of node n1", kProtocolVersions},
//                             {"libmaypole of rank 3", {10, 12}}},
//                            &version);
//   // ok: version == 11. Otherwise s says whose ranges do not meet, and whom
//   // to upgrade.
//
// On the wire, a range is the field that has always been there, which is the
// oldest version, and a second field for the newest one. Versions up to 10 know
// only the first, which must be equal to their own: they send no second one,
// which reads as 0 and means [v, v], and accept whoever begins with 10.
//
// What came with which version is listed here, too. A feature that only two
// sides need is used when their version has it; one that all nodes of an epoch
// need, when the smallest version of the nodes has it.
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

// The last one whose coordinators name no version in Welcome and NodeInfo.
inline constexpr uint32_t kLastSilentVersion = 10;

// --- Features ---------------------------------------------------------------

// One RankLeft may tell of several ranks (RankLeft.others).
inline constexpr uint32_t kRankLeftOfSeveral = 11;
// Executors use the size of chunks that EpochStart says, not their own.
inline constexpr uint32_t kChunkOfEpoch = 12;
// All nodes: schedules that are agreed upon through a tree
// (worker/core/operations/schedule.h).
inline constexpr uint32_t kScheduleTree = 12;
// All nodes: reductions in levels (worker/backend/exchange_plan.h).
inline constexpr uint32_t kReductionLevels = 12;
// All nodes: executors pass on what the coordinator sends to all nodes
// (worker/core/relays.h).
inline constexpr uint32_t kRelays = 13;
// All nodes: inputs of small operations travel before the operations are
// ordered (worker/core/operations/executor_epoch_inputs.cc).
inline constexpr uint32_t kEagerInputs = 14;
// Executors send their statistics when the coordinator asks for them.
inline constexpr uint32_t kNodeStats = 14;

// Ranks of elastic jobs say that they have finished their training
// (session::Finished, RankGone.finished).
inline constexpr uint32_t kFinished = 15;

// Texts of users in messages between executors and the coordinator need not be
// UTF-8 (common/wire/texts.h).
inline constexpr uint32_t kTextsOfBytes = 16;
// A NodeState may come in parts.
inline constexpr uint32_t kNodeStateParts = 16;
// Ranks say why they leave with operations pending (session::LeaveReason).
inline constexpr uint32_t kLeaveReason = 16;

// --- The choice -------------------------------------------------------------

struct Speaker {
  std::string name;  // "the agent of node n1"
  VersionRange versions;
};

// The range in a message; newest: 0 if the sender names none.
VersionRange AnnouncedVersions(uint32_t oldest, uint32_t newest);

// "protocol version 10", "protocol versions 10 to 11"
std::string VersionsText(VersionRange versions);

// Chooses the version that the speakers use with one another. If there is none:
// kFailedPrecondition, with the ranges of two of them and whom to upgrade;
// kInvalidArgument if a range is not one. `speakers`: at least one.
Status ChooseVersion(const std::vector<Speaker>& speakers, uint32_t* version);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_WIRE_VERSIONS_H_
