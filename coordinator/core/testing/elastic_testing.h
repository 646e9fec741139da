// ElasticNode: a node of an elastic job, for tests: the messages that it sends,
// and those that it has received.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_COORDINATOR_CORE_TESTING_ELASTIC_TESTING_H_
#define MAYPOLE_COORDINATOR_CORE_TESTING_ELASTIC_TESTING_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "coordinator/core/testing/testing.h"

namespace maypole::coordinator {

struct ElasticRank {
  uint64_t client = 0;
  uint64_t epoch = 0;  // its last epoch; 0: it is new
  uint32_t rank = 0;   // its rank in that epoch
  int64_t pid = 0;     // 0: the same as then; if new, 1000 + client
};

struct ElasticNode {
  Executor* executor;
  std::vector<ElasticRank> waiting = {};
  std::map<uint64_t, int64_t> pids = {};  // by client
  int64_t start_timeout_ms = 0;           // 0: its ranks do not set it

  proto::ExecutorMessage Ready(uint32_t min_size, uint32_t max_size) {
    proto::ExecutorMessage m;
    proto::RanksReady* ready = m.mutable_ranks_ready();
    ready->set_elastic(true);
    ready->set_min_size(min_size);
    ready->set_max_size(max_size);
    ready->set_chunk_bytes(524288);
    ready->set_stall_check_ms(-1);
    ready->set_stall_shutdown_ms(-1);
    ready->set_start_timeout_ms(start_timeout_ms);
    ready->set_round(Round());
    for (const ElasticRank& r : waiting) {
      proto::ElasticMember* member = ready->add_members();
      member->set_client(r.client);
      member->set_epoch(r.epoch);
      member->set_rank(r.rank);
      member->set_pid(PidOf(r));
    }
    return m;
  }
  int64_t PidOf(const ElasticRank& r) {
    if (r.pid != 0) return pids[r.client] = r.pid;
    auto pid = static_cast<int64_t>(1000 + r.client);
    for (const proto::CoordinatorMessage& m : executor->inbox) {
      if (!m.has_epoch_start() || m.epoch_start().epoch() != r.epoch) continue;
      const proto::EpochStart& start = m.epoch_start();
      const auto& own = start.nodes(start.node_index()).ranks();
      for (int i = 0; i < own.size(); ++i) {
        if (own[i] == r.rank) pid = pids.at(start.clients(i));
      }
    }
    return pids[r.client] = pid;
  }
  // How many starts and refusals were sent to it.
  uint64_t Round() const {
    uint64_t n = 0;
    for (const proto::CoordinatorMessage& m : executor->inbox) {
      n += m.has_epoch_start() || (m.has_epoch_end() && m.epoch() == 0);
    }
    return n;
  }
  const proto::EpochStart* LastStart() const {
    const proto::EpochStart* last = nullptr;
    for (const proto::CoordinatorMessage& m : executor->inbox) {
      if (m.has_epoch_start()) last = &m.epoch_start();
    }
    return last;
  }
  // New and leaving ranks, as in the last MembershipWanted.
  std::pair<uint32_t, uint32_t> Wanted() const {
    std::pair<uint32_t, uint32_t> last;
    for (const proto::CoordinatorMessage& m : executor->inbox) {
      if (!m.has_membership_wanted()) continue;
      last = {m.membership_wanted().new_ranks(),
              m.membership_wanted().leaving()};
    }
    return last;
  }
  std::vector<ReceivedEnd> Refused() const {
    std::vector<ReceivedEnd> out;
    for (const ReceivedEnd& end : executor->ends) {
      if (end.epoch() == 0) out.push_back(end);
    }
    return out;
  }
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_TESTING_ELASTIC_TESTING_H_
