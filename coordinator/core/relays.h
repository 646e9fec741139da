// Relays: messages that are the same for many nodes of a job go to one node,
// which relays them (docs/relays.md).
//
// Purpose: at 1,000 nodes a decision costs the coordinator 1,000 stream writes.
// So a message to many nodes is written once, to the root of a tree of
// executors, with the numbers that it has in each node's session. Delivery does
// not depend on the tree: the sessions keep each message until its node has
// acknowledged it, and the owner sends it directly if a node in the tree is
// slow or lost.
//
//   Relays relays(epoch, sessions_by_node, incarnation);
//   if (!relays.Take(session, *link.Push(message))) ...send it as usual...
//   for (auto& [to, m] : relays.TakeMessages(now)) ...send m as it is...
//   // At Deadline():
//   if (relays.Late(acknowledged)) relays.Pause(now); else relays.Checked();
//
//   state    entered                         consequence
//   active   at first; kRelayPause after     messages to more than fan_out
//            the last Pause(), by Resume()   nodes go to the root
//   paused   Pause()                         all go to their nodes
//
// Thread contract: not synchronized; pure.
#ifndef MAYPOLE_COORDINATOR_CORE_RELAYS_H_
#define MAYPOLE_COORDINATOR_CORE_RELAYS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "coordinator/core/actions.h"
#include "coordinator/core/outgoing.h"

namespace maypole::coordinator {

class Relays {
 public:
  // `nodes`: the sessions of the epoch's nodes, by node. fan_out: of the tree.
  Relays(uint64_t epoch, std::vector<SessionId> nodes, uint32_t fan_out,
         std::string incarnation);

  uint64_t epoch() const { return epoch_; }
  const std::vector<SessionId>& nodes() const { return nodes_; }
  bool active() const { return !resume_at_.has_value(); }

  // Whether TakeMessages() returns this message, which the session's link has
  // numbered. False: it must be sent to the session itself.
  bool Take(SessionId session, const Outgoing& message);
  // What was taken: for the root or, if few nodes get a message, for each of
  // them.
  std::vector<std::pair<SessionId, Outgoing>> TakeMessages(Time now);

  using Acknowledged = std::function<uint64_t(SessionId)>;
  // The first node that has not acknowledged the watched message, if there is
  // one. acknowledged(): the number that a session's link has acknowledged.
  std::optional<size_t> Late(const Acknowledged& acknowledged) const;
  // No node is late; the next message is watched.
  void Checked() { check_at_.reset(); }

  void Pause(Time now);
  void Resume() { resume_at_.reset(); }
  // When to check: if active, whether a node is late (then pause); if paused,
  // whether to resume.
  std::optional<Time> Deadline() const {
    return active() ? check_at_ : resume_at_;
  }

 private:
  struct Group {
    Outgoing message;
    std::vector<std::pair<size_t, Outgoing>> nodes;
  };

  Outgoing Relayed(const Group& group) const;

  const uint64_t epoch_;
  const std::vector<SessionId> nodes_;
  const uint32_t fan_out_;
  const std::string incarnation_;
  std::unordered_map<SessionId, size_t> node_of_;
  std::vector<Group> groups_;
  std::unordered_map<const std::string*, size_t> group_of_;  // by its bytes
  std::optional<Time> resume_at_;
  std::optional<Time> check_at_;
  std::vector<uint64_t> check_;  // by node: the number to be acknowledged
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_RELAYS_H_
