// Requests: the local ranks' requests that concern all ranks of the job.
//
// Purpose: the n-th requests of all ranks (for process sets, or joins) belong
// together and are answered together. This class tracks which rank waits for
// which answer.
//
// Thread contract: not synchronized; no I/O, no clock.
//
// Invariant: a rank's numbers count from 1 without gaps.
#ifndef MAYPOLE_WORKER_CORE_OPERATIONS_REQUESTS_H_
#define MAYPOLE_WORKER_CORE_OPERATIONS_REQUESTS_H_

#include <bit>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "common/wire/session_messages.h"
#include "proto/coordinator.pb.h"
#include "worker/core/actions.h"

namespace maypole::worker {

// Adds the ranks that a request for a process set names to `out`, ascending.
inline void AddMembers(const session::SetRequest& request,
                       proto::SetRequest* out) {
  for (uint32_t w = 0; w < kMaxRanks / 64; ++w) {
    for (uint64_t bits = request.members[w]; bits != 0; bits &= bits - 1) {
      out->add_ranks(w * 64 + static_cast<uint32_t>(std::countr_zero(bits)));
    }
  }
}

class Requests {
 public:
  // At most `limit` requests of a rank may be unanswered.
  explicit Requests(size_t limit) : limit_(limit) {}

  // Returns false if `number` is not the rank's next number, or too many of its
  // requests are unanswered.
  bool Ask(int local_rank, ClientId client, uint32_t number) {
    Asker& asker = askers_[local_rank];
    if (number != asker.last + 1 || asker.waiting.size() >= limit_) {
      return false;
    }
    asker.client = client;
    asker.last = number;
    asker.waiting.insert(number);
    return true;
  }
  uint32_t last(int local_rank) const {
    const auto it = askers_.find(local_rank);
    return it == askers_.end() ? 0 : it->second.last;
  }
  bool Waits(int local_rank) const {
    const auto it = askers_.find(local_rank);
    return it != askers_.end() && !it->second.waiting.empty();
  }
  // Returns the clients that wait for the answer to this number. They no longer
  // wait for it.
  std::vector<ClientId> Answer(uint32_t number) {
    std::vector<ClientId> clients;
    for (auto& [local, asker] : askers_) {
      if (asker.waiting.erase(number) > 0) clients.push_back(asker.client);
    }
    return clients;
  }
  // The rank has left.
  void Forget(int local_rank) { askers_.erase(local_rank); }

 private:
  struct Asker {
    ClientId client = 0;
    uint32_t last = 0;
    std::set<uint32_t> waiting;
  };
  const size_t limit_;
  std::map<int, Asker> askers_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_OPERATIONS_REQUESTS_H_
