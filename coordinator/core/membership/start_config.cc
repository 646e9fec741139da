#include "coordinator/core/membership/start_config.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>

#include "coordinator/core/text.h"

namespace maypole::coordinator {
namespace {

void ReadFusionThreshold(const std::vector<NodeMember>& members, JobLog* log,
                         Config* config) {
  std::map<uint32_t, int64_t> said;  // by rank that sets one
  for (const NodeMember& m : members) {
    for (size_t i = 0; i < m.fusion_thresholds.size(); ++i) {
      if (m.fusion_thresholds[i] < 0) continue;
      said.emplace(m.ranks[i], m.fusion_thresholds[i]);
    }
  }
  if (said.empty()) return;
  const auto [first, used] = *said.begin();
  config->fusion_threshold = static_cast<uint64_t>(used);
  for (const auto& [other, bytes] : said) {
    if (bytes == used) continue;
    log->Warn("fusion_thresholds_differ", " rank=", first, " bytes=", used,
              " other_rank=", other, " other_bytes=", bytes, " used=", used,
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

void ReadStallTimes(const std::vector<NodeMember>& members, JobLog* log,
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
                   JobLog* log) {
  ReadStallTimes(members, log, &config);
  for (const NodeMember& m : members) {
    config.checksums =
        std::max(config.checksums, static_cast<ChecksumMode>(m.checksums));
  }
  ReadFusionThreshold(members, log, &config);
  return config;
}

}  // namespace maypole::coordinator
