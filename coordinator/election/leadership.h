// Leadership: whether this coordinator may issue anything now, and who leads if
// it may not.
//
// Purpose: of several coordinators only the leader may send messages to
// executors, and only until its lease may have ended. Elections (elections.h)
// updates a Leadership; the coordinator's streams ask it before every write.
//
//   if (!leadership.Leads()) ...write nothing...
//
// Thread contract: any thread may call any method. Leads() takes no lock.
//
// Invariants: a process leads at most once: after End() it never leads again.
// Leads() is false from the end of the lease on, whether or not a thread of
// this process has noticed it.
#ifndef MAYPOLE_COORDINATOR_ELECTION_LEADERSHIP_H_
#define MAYPOLE_COORDINATOR_ELECTION_LEADERSHIP_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "coordinator/election/boot_time.h"

namespace maypole::coordinator {

class Leadership {
 public:
  using Clock = BootInstant (*)();
  explicit Leadership(Clock clock = BootTime) : clock_(clock) {}
  Leadership(const Leadership&) = delete;
  Leadership& operator=(const Leadership&) = delete;

  bool Leads() const { return clock_().count() < until_.load(); }
  // The number of this coordinator's leadership: unique, and higher for later
  // leaders. 0: it has never led.
  uint64_t term() const { return term_.load(); }
  // True after End().
  bool over() const { return over_.load(); }

  struct Leader {
    std::string address;  // HOST:PORT; empty: no leader, or unknown
    uint64_t term = 0;
  };
  // Who led when this coordinator last asked the store.
  Leader leader() const;
  // The error for a caller that needs the leader: names its address.
  absl::Status NotLeader() const;

  // --- For Elections ---------------------------------------------------------
  // `address`: of this coordinator, for NotLeader().
  void SetOwnAddress(std::string address);
  void Begin(uint64_t term, BootInstant until);
  void Prolong(BootInstant until);
  void Follow(Leader leader);
  void End();

 private:
  const Clock clock_;
  std::atomic<int64_t> until_{0};  // nanoseconds of BootTime()
  std::atomic<uint64_t> term_{0};
  std::atomic<bool> over_{false};
  mutable std::mutex mutex_;
  std::string own_address_;
  Leader leader_;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_ELECTION_LEADERSHIP_H_
