// ResultLog: queues the checksums of this rank's copies of results for the
// executor, which compares them with the other ranks'.
//
// Purpose: with checksums on (common/checksum/checksum_mode.h), RankCore adds
// each operation whose result should be equal on all ranks, when the result is
// in the rank's memory and before the user gets it. The records leave in
// messages of up to kMaxResultRecords: when a message is full, and at the
// latest kResultPauseNs after SendDue() has seen its first record.
//
//   if (log.Wants(operation)) log.Add(MakeResultRecord(operation, ok));
//   if (log.waits()) log.SendDue(now);
//
// Thread contract: waits(): any thread; RankCore's mutex guards the rest.
//
// Invariants: records leave in the order in which they were added. If the
// executor does not read, at most kMaxKeptResultRecords are kept: later ones
// are counted and dropped.
#ifndef MAYPOLE_CLIENT_ENGINE_RESULT_LOG_H_
#define MAYPOLE_CLIENT_ENGINE_RESULT_LOG_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>

#include "client/engine/operation.h"
#include "client/engine/rank_shell.h"
#include "common/wire/session_messages.h"

namespace maypole {

inline constexpr int64_t kResultPauseNs = 100'000'000;

// The record of an operation that has ended; reads the result.
session::ResultRecord MakeResultRecord(const Operation& operation, bool ok);

class ResultLog {
 public:
  explicit ResultLog(RankShell* shell) : shell_(shell) {}

  // Called before the first operation.
  void Enable() { enabled_ = true; }
  bool Wants(const Operation& operation) const {
    return enabled_ && HasEqualResults(operation.signature.kind);
  }
  void Add(const session::ResultRecord& record);
  bool waits() const { return waits_.load(std::memory_order_relaxed); }
  // Sends what is due, as far as the executor reads.
  void SendDue(int64_t now_ns);
  void SendAll();

 private:
  bool empty() const { return records_.empty() && dropped_ == 0; }
  bool full() const { return records_.size() >= kMaxResultRecords; }
  bool SendIfRoom();
  // The oldest records.
  session::ResultRecords Take();

  RankShell* const shell_;
  bool enabled_ = false;
  std::deque<session::ResultRecord> records_;
  uint32_t dropped_ = 0;
  // When SendDue() first saw records that have not left yet.
  std::optional<int64_t> since_ns_;
  std::atomic<bool> waits_{false};
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_ENGINE_RESULT_LOG_H_
