// EpochNodes: the nodes of one epoch, and the way to send to them.
//
// Purpose: says which executors take part, and which of them are still
// connected. Numbers the job's decisions, and counts what was sent to each
// node.
//
//   EpochNodes nodes(3, "job", members, &output);
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

#include "coordinator/core/actions.h"
#include "coordinator/core/membership/gathering.h"

namespace maypole::coordinator {

class EpochNodes : public JobLog {
 public:
  // `output` must outlive this object.
  EpochNodes(uint64_t epoch, std::string job, std::vector<NodeMember> members,
             JobOutput* output);

  size_t size() const { return members_.size(); }
  const std::vector<NodeMember>& members() const { return members_; }
  const NodeMember& operator[](size_t node) const { return members_[node]; }
  // Nullopt if the session is not a member's, or was disconnected.
  std::optional<size_t> IndexOf(SessionId session) const;
  bool IsConnected(size_t node) const { return connected_[node]; }
  bool AllConnected() const;
  void Disconnect(size_t node) { connected_[node] = false; }
  // The node that has the rank; nullopt: none has.
  std::optional<size_t> NodeOf(uint32_t rank) const;
  std::string RankText(uint32_t rank) const;  // "rank 2 (node n1)"

  void Send(size_t node, Outgoing message);
  void SendAll(const Outgoing& message);
  // The same for a message that sent() does not count.
  void SendUncounted(size_t node, Outgoing message);
  void SendAllUncounted(const Outgoing& message);
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

 private:
  const std::vector<NodeMember> members_;
  std::unordered_map<SessionId, size_t> index_;  // of each member
  std::vector<bool> connected_;                  // by member
  std::vector<uint64_t> sent_;                   // by member
  uint64_t decision_ = 0;                        // the last one
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_EPOCH_NODES_H_
