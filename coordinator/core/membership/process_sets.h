// ProcessSets: the process sets of one epoch.
//
// Purpose: set 0 has all ranks. Other sets are created and removed by requests,
// which every rank of the job makes in the same order. When every rank has made
// its n-th request, these are compared, and all get the same answer.
//
//   ProcessSets sets(&nodes, &departures, size);
//   absl::Status s = sets.OnRequest(now, node, message, busy);
//   const RankSet* set = sets.Find(3);         // null: no such set now
//
//   the n-th requests of all ranks          answer
//   create: equal and valid                 the set's id: 1, 2, ..; ids are
//                                           never reused
//   remove: equal, the set exists           OK
//   they differ                             FAILED_PRECONDITION, names ranks
//   create: a set with these members        INVALID_ARGUMENT
//     exists; no members; out of range
//   remove: there is no such set            INVALID_ARGUMENT
//   remove: one of its operations pending   FAILED_PRECONDITION
//   create: kMaxProcessSets were created    RESOURCE_EXHAUSTED
//   a rank has left                         ABORTED, names the rank
//
// After a rank has left, no request can be completed. Waiting requests are
// answered at once, to all nodes; later ones only to the node that asks.
//
// A set may also be requested by its members alone, in any order. When all of
// them have asked, all nodes get the answer; if the set exists, its id is the
// answer to each request. Such a request fails only if a member has left.
//
// Thread contract: not synchronized; pure.
//
// Invariants: RankSet pointers, also to removed sets, are valid as long as this
// object. There is one answer for all ranks per number, in the order of the
// numbers.
#ifndef MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_PROCESS_SETS_H_
#define MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_PROCESS_SETS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/actions.h"
#include "coordinator/core/membership/departures.h"
#include "coordinator/core/membership/epoch_nodes.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

// A process set, as the coordinator sees it.
struct RankSet {
  uint32_t id = 0;
  std::vector<uint32_t> ranks;  // ascending
  // By node of the epoch: the set's ranks there, in the order of local ranks.
  std::vector<std::vector<uint32_t>> by_node;
  std::vector<size_t> nodes;  // nodes with ranks of the set, ascending
  bool removed = false;

  bool Has(uint32_t rank) const;
  // In `ranks`, of which it is one.
  size_t PositionOf(uint32_t rank) const;
  // "process set 2 (ranks [0, 1])", "the job of 3 ranks"
  std::string Text() const;
};

// "[0, 1]", truncated after sixteen ranks.
std::string MembersText(const std::vector<uint32_t>& ranks);

class ProcessSets {
 public:
  // True if an operation of the set is pending.
  using Busy = std::function<bool(uint32_t process_set)>;

  // Both pointers must outlive this object. `size`: ranks of the epoch.
  ProcessSets(EpochNodes* nodes, const Departures* departures, uint32_t size);

  // Null if there is no such set, or it was removed.
  const RankSet* Find(uint32_t id) const;
  // Also finds sets that were removed.
  const RankSet* FindEver(uint32_t id) const;

  // Handles a request of a rank of `node`. An error means that the message is
  // bad.
  absl::Status OnRequest(Time now, size_t node,
                         const proto::SetRequest& message, const Busy& busy);
  // The rank has just left.
  void OnRankLeft(uint32_t rank);

  // Takes over the sets of another coordinator, and what it has answered.
  void Restore(const proto::NodeState& state);

  // Requests that some ranks have made and others have not.
  struct Incomplete {
    std::string text;  // "process set request 3", "process set of ranks [0, 2]"
    Time since{};
    std::vector<uint32_t> asked;    // ascending
    std::vector<uint32_t> missing;  // ascending
  };
  std::vector<Incomplete> Waiting() const;
  size_t waiting() const { return asked_.size() + by_members_.size(); }
  // The oldest request of all ranks, else one of members, for which the rank
  // waits; nullopt if there is none.
  std::optional<Incomplete> WaitOf(uint32_t rank) const;

 private:
  // Ranks with equal requests.
  struct Group {
    proto::SetRequest request;
    std::vector<uint32_t> ranks;
  };
  struct Request {
    Time since{};
    uint32_t count = 0;
    std::vector<Group> groups;
  };

  // Members that have requested a set.
  struct Members {
    Time since{};
    std::set<uint32_t> asked;
  };

  absl::Status Check(size_t node, const proto::SetRequest& message) const;
  absl::Status OnMembersRequest(Time now, size_t node,
                                const proto::SetRequest& message);
  proto::SetReply Decide(uint32_t number, const Request& request,
                         const Busy& busy);
  absl::Status CheckRanks(const std::vector<uint32_t>& ranks) const;
  absl::Status Make(std::vector<uint32_t> ranks, uint32_t* id);
  absl::Status Remove(const proto::SetRequest& request, const Busy& busy);
  void Add(uint32_t id, std::vector<uint32_t> ranks);
  static std::string DescribeDifference(const Request& request);
  proto::SetReply LeftReply(uint32_t number) const;
  // Sends it to the node or, if it is null, to all nodes.
  void Send(std::optional<size_t> node, proto::SetReply reply);
  // The answer to a request of these members, one of which has left.
  proto::SetReply LeftReply(const std::vector<uint32_t>& ranks,
                            uint32_t left) const;

  EpochNodes& nodes_;
  const Departures& departures_;
  const uint32_t size_;
  std::deque<RankSet> sets_;                       // by id
  std::map<std::vector<uint32_t>, uint32_t> ids_;  // of the existing sets
  std::map<uint32_t, Request> asked_;              // by number; unanswered
  std::vector<uint32_t> numbers_;                  // by rank: its last request
  std::map<std::vector<uint32_t>, Members> by_members_;  // unanswered
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_PROCESS_SETS_H_
