// EpochInfo: the ranks and nodes of an epoch, from the coordinator's
// EpochStart.
//
// Thread contract: values; pure functions.
#ifndef MAYPOLE_WORKER_CORE_EPOCH_INFO_H_
#define MAYPOLE_WORKER_CORE_EPOCH_INFO_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/wire/session_messages.h"
#include "proto/coordinator.pb.h"

namespace maypole::worker {

struct EpochInfo {
  uint64_t epoch = 0;
  int size = 1;
  uint32_t node_index = 0;
  std::vector<proto::NodeInfo> nodes;
  int64_t stall_check_ms = 0;  // 0: stragglers are not reported
  uint32_t checksums = 0;      // ChecksumMode
  uint32_t chunk_bytes = 0;
  bool sends_inputs = false;  // see PresentOperation.inputs_sent
  uint32_t relay_fan_out = 0;

  bool several_nodes() const { return nodes.size() > 1; }
  const proto::NodeInfo& own_node() const { return nodes[node_index]; }
  // The global ranks of this node, by local rank.
  std::vector<int> LocalRanks() const;
  // By global rank.
  std::vector<uint32_t> NodeOfRank() const;
  std::string NodeText(uint32_t node) const;  // "node n1 (host b)"
  std::string OwnNodeText() const { return NodeText(node_index); }
  // Returns the name of the rank's node, or null if no node has the rank.
  const std::string* NodeOf(int rank) const;
  // Returns a node whose session has the smallest version.
  uint32_t OldestNode() const;
};

// Nodes speak the smallest of their versions with one another. Returns an error
// that names a node if that node's version is the smallest and not in `own`,
// this node's range.
absl::Status CheckVersions(const EpochInfo& info, VersionRange own);

// Checks the coordinator's EpochStart against the ranks of this node.
absl::StatusOr<EpochInfo> ReadEpochStart(const proto::EpochStart& start,
                                         const std::vector<int>& local_ranks);

// Returns the reason in an EpochEnd, for ranks: never OK, and never without a
// text.
absl::Status ReasonOf(const proto::EpochEnd& end);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_EPOCH_INFO_H_
