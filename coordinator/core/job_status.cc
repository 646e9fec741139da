#include "coordinator/core/job_status.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace maypole::coordinator {
namespace {

// The rank's existing entry if it has left its epoch; otherwise a new one.
proto::RankStatus* EntryOf(
    proto::NodeStatus* node,
    const std::function<bool(const proto::RankStatus&)>& same) {
  for (proto::RankStatus& r : *node->mutable_rank_status()) {
    if (r.state() == "left" && same(r)) return &r;
  }
  return node->add_rank_status();
}

void AddWaiting(const NodeMember& member, proto::NodeStatus* node) {
  for (size_t i = 0; i < member.ranks.size(); ++i) {
    const uint32_t rank = member.ranks[i];
    const int known = node->rank_status_size();
    proto::RankStatus* r =
        EntryOf(node, [rank](const auto& s) { return s.rank() == rank; });
    if (node->rank_status_size() > known) node->add_ranks(rank);
    r->set_rank(rank);
    r->set_pid(i < member.pids.size() ? member.pids[i] : 0);
    r->set_state("waiting");
  }
}

void AddWaiting(const std::vector<int64_t>& pids, proto::NodeStatus* node) {
  for (const int64_t pid : pids) {
    const int known = node->rank_status_size();
    proto::RankStatus* r =
        EntryOf(node, [pid](const auto& s) { return s.pid() == pid; });
    r->set_unnumbered(node->rank_status_size() > known);
    r->set_pid(pid);
    r->set_state("waiting");
  }
}

}  // namespace

void FillNodeStatus(Time now, SessionId session, const JobNodes::Node& node,
                    const CoordinatorEpoch* epoch, const Gathering& gathering,
                    const Elastic& elastic, proto::NodeStatus* status) {
  status->set_node(node.node);
  status->set_host(node.host);
  status->set_address(node.address);
  if (epoch != nullptr) {
    if (const std::optional<size_t> i = epoch->nodes().IndexOf(session)) {
      epoch->FillStatus(now, *i, status);
    }
  }
  const NodeMember* next = gathering.Find(session);
  if (next == nullptr) next = gathering.FindWaiting(session);
  if (next != nullptr) AddWaiting(*next, status);
  AddWaiting(elastic.WaitingPids(session), status);
}

}  // namespace maypole::coordinator
