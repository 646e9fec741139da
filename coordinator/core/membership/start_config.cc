#include "coordinator/core/membership/start_config.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "coordinator/core/text.h"

namespace maypole::coordinator {
namespace {

struct RankThreshold {
  uint32_t rank = 0;
  int64_t bytes = 0;
};

// The thresholds of the ranks that set one, by rank.
std::vector<RankThreshold> FusionThresholds(
    const std::vector<NodeMember>& members) {
  std::vector<RankThreshold> said;
  for (const NodeMember& m : members) {
    for (size_t i = 0; i < m.fusion_thresholds.size(); ++i) {
      if (m.fusion_thresholds[i] < 0) continue;
      said.push_back({m.ranks[i], m.fusion_thresholds[i]});
    }
  }
  std::sort(said.begin(), said.end(),
            [](const RankThreshold& a, const RankThreshold& b) {
              return a.rank < b.rank;
            });
  return said;
}

void ReadFusionThreshold(const std::vector<NodeMember>& members, JobNodes* log,
                         Config* config) {
  const std::vector<RankThreshold> said = FusionThresholds(members);
  if (said.empty()) return;
  config->fusion_threshold = static_cast<uint64_t>(said.front().bytes);
  for (const RankThreshold& other : said) {
    if (other.bytes == said.front().bytes) continue;
    log->Warn("fusion_thresholds_differ", " rank=", said.front().rank,
              " bytes=", said.front().bytes, " other_rank=", other.rank,
              " other_bytes=", other.bytes, " used=", said.front().bytes,
              " reason=\"the smallest rank's is used; give all ranks the same "
              "MAYPOLE_FUSION_THRESHOLD\"");
    return;
  }
}

// The value of the smallest rank that sets one; -1 if none does.
int64_t OfSmallest(const std::vector<NodeMember>& members,
                   int64_t NodeMember::*field) {
  const NodeMember* first = nullptr;
  for (const NodeMember& m : members) {
    if (m.*field < 0) continue;
    if (first == nullptr || m.SmallestRank() < first->SmallestRank()) {
      first = &m;
    }
  }
  return first == nullptr ? -1 : first->*field;
}

void ReadStallTimes(const std::vector<NodeMember>& members, JobNodes* log,
                    Config* config) {
  const int64_t check = OfSmallest(members, &NodeMember::stall_check_ms);
  const int64_t shutdown = OfSmallest(members, &NodeMember::stall_shutdown_ms);
  if (check >= 0) config->stall_check = std::chrono::milliseconds(check);
  if (shutdown >= 0) {
    config->stall_shutdown = std::chrono::milliseconds(shutdown);
  }
  const bool checks = config->stall_check > Time::zero();
  if (config->stall_shutdown == Time::zero() ||
      (checks && config->stall_shutdown > config->stall_check)) {
    return;
  }
  log->Warn("stall_shutdown_too_short",
            " check=", LogValue(SecondsText(config->stall_check)),
            " shutdown=", LogValue(SecondsText(config->stall_shutdown)),
            !checks
                ? " reason=\"no rank counts as late (check 0), so no job ends\""
                : " reason=\"a rank counts as late only after the check time, "
                  "so the job ends later\"");
}

}  // namespace

Config StartConfig(Config config, const std::vector<NodeMember>& members,
                   JobNodes* log) {
  ReadStallTimes(members, log, &config);
  for (const NodeMember& m : members) {
    config.checksums =
        std::max(config.checksums, static_cast<ChecksumMode>(m.checksums));
  }
  ReadFusionThreshold(members, log, &config);
  return config;
}

}  // namespace maypole::coordinator
