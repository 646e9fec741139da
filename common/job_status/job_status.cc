#include "common/job_status/job_status.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/types.h"

namespace maypole {

std::vector<const proto::NodeStatus*> ByRank(const proto::JobStatus& job) {
  std::vector<const proto::NodeStatus*> nodes;
  for (const proto::NodeStatus& node : job.nodes()) nodes.push_back(&node);
  const auto first = [](const proto::NodeStatus* node) {
    const auto& ranks = node->ranks();
    return ranks.empty() ? UINT32_MAX
                         : *std::min_element(ranks.begin(), ranks.end());
  };
  std::stable_sort(
      nodes.begin(), nodes.end(),
      [&](const auto* a, const auto* b) { return first(a) < first(b); });
  return nodes;
}

std::string OperationText(const proto::PendingOperation& op) {
  const auto kind = static_cast<Kind>(op.kind());
  std::string out =
      absl::StrCat(IsKnown(kind) ? std::string(Name(kind)) : "operation", " '",
                   op.name(), "'");
  if (op.process_set() > 0) {
    absl::StrAppend(&out, " of process set ", op.process_set());
  }
  return out;
}

}  // namespace maypole
