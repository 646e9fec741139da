#include "worker/core/epoch_info.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/absl_status.h"

namespace maypole::worker {

std::vector<int> EpochInfo::LocalRanks() const {
  return {own_node().ranks().begin(), own_node().ranks().end()};
}

std::vector<uint32_t> EpochInfo::NodeOfRank() const {
  std::vector<uint32_t> out(static_cast<size_t>(size), 0);
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    for (const uint32_t rank : nodes[i].ranks()) out[rank] = i;
  }
  return out;
}

std::string EpochInfo::NodeText(uint32_t node) const {
  return absl::StrCat("node ", nodes[node].node(), " (host ",
                      nodes[node].host(), ")");
}

const std::string* EpochInfo::NodeOf(int rank) const {
  for (const proto::NodeInfo& node : nodes) {
    const auto& ranks = node.ranks();
    if (std::find(ranks.begin(), ranks.end(), static_cast<uint32_t>(rank)) !=
        ranks.end()) {
      return &node.node();
    }
  }
  return nullptr;
}

uint32_t EpochInfo::OldestNode() const {
  uint32_t oldest = 0;
  for (uint32_t i = 1; i < nodes.size(); ++i) {
    if (nodes[i].protocol_version() < nodes[oldest].protocol_version()) {
      oldest = i;
    }
  }
  return oldest;
}

absl::Status CheckVersions(const EpochInfo& info, VersionRange own) {
  const uint32_t least = info.OldestNode();
  const auto name = [&info](uint32_t node) {
    return absl::StrCat("maypole-worker on ", info.NodeText(node));
  };
  const uint32_t smallest = info.nodes[least].protocol_version();
  uint32_t version = 0;
  const maypole::Status s = ChooseVersion(
      {{name(least), {smallest, smallest}}, {name(info.node_index), own}},
      &version);
  if (s.ok()) return absl::OkStatus();
  return ToAbsl(
      maypole::Status(s.code(), "the job cannot start: " + s.message()));
}

absl::StatusOr<EpochInfo> ReadEpochStart(const proto::EpochStart& start,
                                         const std::vector<int>& local_ranks) {
  const auto bad = [&](const std::string& what) {
    return absl::InternalError(absl::StrCat("the coordinator's start of epoch ",
                                            start.epoch(),
                                            " is wrong: ", what));
  };
  EpochInfo info{
      start.epoch(),          static_cast<int>(start.size()),
      start.node_index(),     {start.nodes().begin(), start.nodes().end()},
      start.stall_check_ms(), start.checksums(),
      start.chunk_bytes(),    start.sends_inputs(),
      start.relay_fan_out()};
  if (start.size() < 1 || start.size() > static_cast<uint32_t>(kMaxRanks) ||
      info.node_index >= info.nodes.size()) {
    return bad("size or node index out of range");
  }
  if (info.chunk_bytes == 0) return bad("chunks of 0 bytes");
  std::set<uint32_t> seen;
  for (const proto::NodeInfo& node : info.nodes) {
    for (const uint32_t rank : node.ranks()) {
      if (rank >= start.size() || !seen.insert(rank).second) {
        return bad(absl::StrCat("rank ", rank, " is invalid or repeated"));
      }
    }
  }
  if (seen.size() != start.size()) return bad("ranks are missing");
  if (info.LocalRanks() != local_ranks) {
    return bad("it does not list the ranks of this node");
  }
  return info;
}

absl::Status ReasonOf(const proto::EpochEnd& end) {
  const bool known = end.code() > 0 && end.code() <= 16;
  return absl::Status(
      known ? static_cast<absl::StatusCode>(end.code())
            : absl::StatusCode::kAborted,
      end.message().empty()
          ? "the coordinator ended the epoch without giving a reason"
          : end.message());
}

}  // namespace maypole::worker
