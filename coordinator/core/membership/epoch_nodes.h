// EpochNodes: the nodes of one epoch, and the way to send to them.
//
// Purpose: says which executors take part, which of them are still connected,
// and what their protocol versions support. Numbers the job's decisions, and
// counts what was sent to each node.
//
//   EpochNodes nodes(3, "job", members, kProtocolVersion, &output);
//   nodes.Send(0, message);                    // nothing if it is disconnected
//   nodes.Warn("no_nccl", " node=", name);     // with the job and the epoch
//
// Thread contract: not synchronized; pure.
//
// Invariants: members are ordered by smallest rank and do not change. A node
// that is disconnected stays so.
#ifndef MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_EPOCH_NODES_H_
#define MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_EPOCH_NODES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/actions.h"
#include "coordinator/core/membership/gathering.h"

namespace maypole::coordinator {

class EpochNodes {
 public:
  // `output` must outlive this object.
  EpochNodes(uint64_t epoch, std::string job, std::vector<NodeMember> members,
             JobOutput* output);
  EpochNodes(const EpochNodes&) = delete;
  EpochNodes& operator=(const EpochNodes&) = delete;

  uint64_t epoch() const { return epoch_; }
  const std::string& job() const { return job_; }
  size_t size() const { return members_.size(); }
  const std::vector<NodeMember>& members() const { return members_; }
  const NodeMember& operator[](size_t node) const { return members_[node]; }
  // Nullopt if the session is not a member's, or was disconnected.
  std::optional<size_t> IndexOf(SessionId session) const;
  bool IsConnected(size_t node) const { return connected_[node]; }
  bool AllConnected() const;
  void Disconnect(size_t node) { connected_[node] = false; }
  std::string RankText(uint32_t rank) const;  // "rank 2 (node n1)"

  void Send(size_t node, Outgoing message);
  void SendAll(const Outgoing& message);
  // Like Send(), for a message that sent() does not count.
  void SendUncounted(size_t node, Outgoing message);
  // Sends the reply to the node or, if it is null, as a decision to all nodes.
  // `field`: of the message, such as &proto::CoordinatorMessage::mutable_...
  template <typename Reply>
  void SendReply(std::optional<size_t> node, Reply reply,
                 Reply* (proto::CoordinatorMessage::*field)()) {
    if (!node) reply.set_decision(NextDecision());
    proto::CoordinatorMessage message;
    *(message.*field)() = std::move(reply);
    return node ? Send(*node, message) : SendAll(message);
  }
  // By node: messages that it must handle before it can be sure of a deadlock.
  const std::vector<uint64_t>& sent() const { return sent_; }

  // The job's decisions, see proto Decision.
  uint64_t NextDecision() { return ++decision_; }
  uint64_t last_decision() const { return decision_; }
  void SetLastDecision(uint64_t decision) { decision_ = decision; }

  template <typename... Fields>
  void Info(absl::string_view event, const Fields&... fields) {
    out.Info(LogPrefix(event), fields...);
  }
  template <typename... Fields>
  void Warn(absl::string_view event, const Fields&... fields) {
    out.Warn(LogPrefix(event), fields...);
  }
  JobOutput& out;

 private:
  std::string LogPrefix(absl::string_view event) const;

  const uint64_t epoch_;
  const std::string job_;
  const std::vector<NodeMember> members_;
  std::unordered_map<SessionId, size_t> index_;  // of each member
  std::vector<bool> connected_;                  // by member
  std::vector<uint64_t> sent_;                   // by member
  uint64_t decision_ = 0;                        // the last one
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_EPOCH_NODES_H_
