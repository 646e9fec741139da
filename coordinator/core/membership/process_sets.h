// ProcessSets: which ranks an operation can be for, in one epoch.
//
// Purpose: set 0 has all ranks. Others are made and removed by requests that
// every rank of the job makes in the same order: when every rank has made its
// n-th, they are compared and answered alike.
//
//   ProcessSets sets(&members, size);
//   absl::Status s = sets.Ask(now, node, message, busy, &replies);
//   const RankSet* set = sets.Find(3);         // null: no such set now
//
//   the n-th requests of all ranks          answer
//   make: equal, sound, new members         the set's id: 1, 2, .. never again
//   remove: equal, a set that is there      done
//   differ                                  FAILED_PRECONDITION, names ranks
//   make: members of a set that is there,   INVALID_ARGUMENT
//     empty, out of range
//   remove: no such set                     INVALID_ARGUMENT
//   remove: an operation of it is pending   FAILED_PRECONDITION
//   make: kMaxProcessSets made already      RESOURCE_EXHAUSTED
//   a rank has left                         ABORTED, names it
//
// After a rank has left no request can be complete: those that wait are
// answered at once, to all; those that come later to the node that asks.
//
// Thread contract: not synchronized; pure.
//
// Invariants: RankSet pointers stay valid as long as this, also those of sets
// that were removed; an answer for all ranks is given once per number, in the
// order of the numbers.
#ifndef MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_PROCESS_SETS_H_
#define MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_PROCESS_SETS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/actions.h"
#include "coordinator/core/membership/gathering.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

// A process set, seen from the coordinator.
struct RankSet {
  uint32_t id = 0;
  std::vector<uint32_t> ranks;  // ascending
  // By node of the epoch: the set's ranks there, in the order of local ranks.
  std::vector<std::vector<uint32_t>> by_node;
  std::vector<size_t> nodes;  // those with ranks, ascending
  bool removed = false;

  bool Has(uint32_t rank) const;
  // "process set 2 (ranks [0, 1])", "the job of 3 ranks"
  std::string Text() const;
};

// "[0, 1]", cut after sixteen.
std::string MembersText(const std::vector<uint32_t>& ranks);

class ProcessSets {
 public:
  // (to this node, or none: to all; the message)
  using Reply = std::pair<std::optional<size_t>, proto::SetReply>;
  using Replies = std::vector<Reply>;
  // True if an operation of the set is pending.
  using Busy = std::function<bool(uint32_t process_set)>;

  // `members` outlives this.
  ProcessSets(const std::vector<NodeMember>* members, uint32_t size);

  // Null: no such set, or not any more.
  const RankSet* Find(uint32_t id) const;
  // Also one that was removed.
  const RankSet* FindEver(uint32_t id) const;

  // A request of a rank of `node`. An error means that the message is bad.
  absl::Status Ask(Time now, size_t node, const proto::SetRequest& message,
                   const Busy& busy, Replies* replies);
  // `who`: "rank 2 (node n1)"
  void OnRankLeft(const std::string& who, Replies* replies);

  // Requests that some ranks have made and others have not.
  struct Incomplete {
    uint32_t number = 0;
    Time since{};
    std::vector<uint32_t> asked;  // ascending, like missing
    std::vector<uint32_t> missing;
  };
  std::vector<Incomplete> Waiting() const;
  size_t waiting() const { return asked_.size(); }
  // The oldest request of the rank that is not answered; 0: none.
  uint32_t WaitsFor(uint32_t rank) const;

 private:
  // Ranks that ask for the same.
  struct Group {
    proto::SetRequest request;
    std::vector<uint32_t> ranks;
  };
  struct Request {
    Time since{};
    uint32_t count = 0;
    std::vector<Group> groups;
  };

  absl::Status Check(size_t node, const proto::SetRequest& message) const;
  proto::SetReply Decide(uint32_t number, const Request& request,
                         const Busy& busy);
  absl::Status Make(const proto::SetRequest& request, uint32_t* id);
  absl::Status Remove(const proto::SetRequest& request, const Busy& busy);
  void Add(uint32_t id, std::vector<uint32_t> ranks);
  static std::string DescribeDifference(const Request& request);
  proto::SetReply LeftReply(uint32_t number) const;

  const std::vector<NodeMember>& members_;
  const uint32_t size_;
  std::deque<RankSet> sets_;                       // by id
  std::map<std::vector<uint32_t>, uint32_t> ids_;  // of those that are there
  std::map<uint32_t, Request> asked_;              // by number; unanswered
  std::vector<uint32_t> numbers_;                  // by rank: the last asked
  std::string left_;                               // who; empty: nobody
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_PROCESS_SETS_H_
