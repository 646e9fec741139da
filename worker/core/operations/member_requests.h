// MemberRequests: local ranks' requests for process sets that only the members
// request (proto::SetRequest.by_members).
//
// Purpose: unlike Requests, matches these by the set's ranks, not by number.
// This class tracks which rank waits for which set. Several requests of a rank
// for one set become one request to the coordinator.
//
// Thread contract: not synchronized; no I/O, no clock.
//
// Invariant: at most `limit` requests of a rank are unanswered.
#ifndef MAYPOLE_WORKER_CORE_OPERATIONS_MEMBER_REQUESTS_H_
#define MAYPOLE_WORKER_CORE_OPERATIONS_MEMBER_REQUESTS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "proto/coordinator.pb.h"
#include "worker/core/actions.h"

namespace maypole::worker {

class MemberRequests {
 public:
  // A client and the number of its request.
  using Asker = std::pair<ClientId, uint32_t>;

  explicit MemberRequests(size_t limit) : limit_(limit) {}

  // Returns false if too many requests of the rank are unanswered.
  // `*first`: whether the coordinator must get this request.
  bool Ask(int local_rank, const Asker& asker, const proto::SetRequest& request,
           bool* first) {
    if (waiting_[local_rank] >= limit_) return false;
    ++waiting_[local_rank];
    Request& r = requests_[{RanksOf(request.ranks()), local_rank}];
    *first = r.askers.empty();
    r.askers.push_back(asker);
    r.message = request;
    return true;
  }
  bool Waits(int local_rank) const {
    const auto it = waiting_.find(local_rank);
    return it != waiting_.end() && it->second > 0;
  }
  // Returns the requests that this reply answers, those for the set of its
  // ranks. They no longer wait.
  std::vector<Asker> Answer(const proto::SetReply& reply) {
    std::vector<Asker> out;
    const std::vector<uint32_t> ranks = RanksOf(reply.ranks());
    std::erase_if(requests_, [&](const auto& entry) {
      if (entry.first.first != ranks) return false;
      const std::vector<Asker>& askers = entry.second.askers;
      out.insert(out.end(), askers.begin(), askers.end());
      waiting_[entry.first.second] -= askers.size();
      return true;
    });
    return out;
  }
  // The rank has left.
  void Forget(int local_rank) {
    waiting_.erase(local_rank);
    std::erase_if(requests_, [local_rank](const auto& entry) {
      return entry.first.second == local_rank;
    });
  }
  // Calls `use` for each unanswered request, for a coordinator that knows none.
  void ForEach(const std::function<void(const proto::SetRequest&)>& use) const {
    for (const auto& [key, request] : requests_) use(request.message);
  }

 private:
  struct Request {
    proto::SetRequest message;
    std::vector<Asker> askers;
  };
  template <typename Repeated>
  static std::vector<uint32_t> RanksOf(const Repeated& ranks) {
    return {ranks.begin(), ranks.end()};
  }
  const size_t limit_;
  std::map<int, size_t> waiting_;  // unanswered, by local rank
  // By the set's ranks and the local rank that asks.
  std::map<std::pair<std::vector<uint32_t>, int>, Request> requests_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_OPERATIONS_MEMBER_REQUESTS_H_
