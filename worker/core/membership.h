// Membership: the ranks of one node that come together for an epoch.
//
// Purpose: checks every Hello against itself and against those before, so that
// a wrong one is refused by a sentence and touches nobody else.
//
// Elastic ranks have no places until an epoch gives them some: while they
// gather they are kept by arrival, as rank -1.
//
// Thread contract: not synchronized; no I/O, no clock.
#ifndef MAYPOLE_WORKER_CORE_MEMBERSHIP_H_
#define MAYPOLE_WORKER_CORE_MEMBERSHIP_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/wire/session_messages.h"
#include "worker/core/actions.h"

namespace maypole::worker {

struct LocalMember {
  ClientId client = 0;
  int rank = 0;
  int local_rank = 0;
  int pid = 0;          // as the client sees itself; for messages
  int visible_pid = 0;  // in our PID namespace, 0 if it is outside
  std::string host;
  int64_t fusion_threshold = -1;  // -1: its environment says nothing
  int64_t stall_check_ms = -1;    // the same
  int64_t stall_shutdown_ms = -1;
  int64_t start_timeout_ms = -1;
  bool elastic = false;
  uint64_t last_epoch = 0;  // elastic; 0: it is new
  int last_rank = -1;       // what it was in last_epoch
};

class Membership {
 public:
  // An error is for the offender; nothing has changed then.
  absl::Status Add(ClientId client, const session::Hello& hello,
                   int visible_pid);
  // Null if the client is none of these.
  const LocalMember* Find(ClientId client) const;
  const LocalMember* FindRank(int rank) const;
  void Remove(ClientId client);

  bool empty() const { return members_.empty(); }
  // All local ranks are there; of elastic ones there may be any number.
  bool complete() const;
  bool elastic() const {
    return !members_.empty() && members_.begin()->second.elastic;
  }
  int min_size() const { return min_size_; }  // elastic
  int max_size() const { return max_size_; }
  // Elastic: these, with places in an epoch of `size` ranks: local ranks in
  // this order. All must be here.
  Membership TakeOut(const std::vector<ClientId>& clients,
                     const std::vector<int>& ranks, int size);
  // The reverse.
  void TakeBack(Membership members);
  int size() const { return size_; }
  int local_size() const { return local_size_; }
  // By local rank.
  const std::map<int, LocalMember>& members() const { return members_; }
  // How long these wait for a start, as the most impatient says; `otherwise` if
  // none says anything.
  int64_t StartTimeoutMs(int64_t otherwise) const;
  // "local ranks 1,3 of 4 have not called init()"
  std::string MissingText() const;

 private:
  absl::Status CheckAgainstFirst(const session::Hello& hello) const;
  absl::Status CheckElastic(const session::Hello& hello) const;

  int size_ = 0;
  int local_size_ = 0;
  int min_size_ = 0;
  int max_size_ = 0;
  int arrivals_ = 0;  // of elastic ranks
  std::map<int, LocalMember> members_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_MEMBERSHIP_H_
