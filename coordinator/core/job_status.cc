#include "coordinator/core/job_status.h"

#include <algorithm>
#include <cstdint>
#include <optional>

namespace maypole::coordinator {
namespace {

// Adds a waiting rank, or marks it as waiting if it has left its epoch. A rank
// of an elastic job has no number yet (nullopt), and is known by its pid.
void AddWaiting(std::optional<uint32_t> rank, int64_t pid,
                proto::NodeStatus* node) {
  const auto same = [&](const proto::RankStatus& r) {
    return r.state() == "left" && (rank ? r.rank() == *rank : r.pid() == pid);
  };
  auto& known = *node->mutable_rank_status();
  const auto left = std::ranges::find_if(known, same);
  const bool is_new = left == known.end();
  proto::RankStatus& r = is_new ? *node->add_rank_status() : *left;
  if (is_new && rank) node->add_ranks(*rank);
  r.set_unnumbered(is_new && !rank);
  if (rank) r.set_rank(*rank);
  r.set_pid(pid);
  r.set_state("waiting");
}

}  // namespace

void FillNodeStatus(Time now, const NodeMember& node,
                    const CoordinatorEpoch* epoch, const Gathering& gathering,
                    const Elastic& elastic, proto::NodeStatus* status) {
  status->set_node(node.node);
  status->set_host(node.host);
  status->set_address(node.address);
  if (epoch != nullptr) {
    if (const std::optional<size_t> i = epoch->nodes().IndexOf(node.session)) {
      epoch->FillStatus(now, *i, status);
    }
  }
  const NodeMember* next = gathering.Find(node.session);
  if (next == nullptr) next = gathering.FindWaiting(node.session);
  for (size_t i = 0; next != nullptr && i < next->ranks.size(); ++i) {
    AddWaiting(next->ranks[i], next->PidOf(i), status);
  }
  for (const int64_t pid : elastic.WaitingPids(node.session)) {
    AddWaiting(std::nullopt, pid, status);
  }
}

}  // namespace maypole::coordinator
