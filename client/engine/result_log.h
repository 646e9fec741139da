// ResultLog: the checksums of this rank's copies of results, on their way to
// the executor, which compares them with the other ranks'.
//
// Purpose: with checksums on (common/checksum/checksum_mode.h), RankCore adds
// each operation whose result should be equal on all ranks, when the result is
// in the rank's memory and not yet the user's. The records leave in messages of
// up to kMaxResultRecords, at the latest kResultPauseNs after Due() has seen
// the first of them.
//
//   log.Add(MakeResultRecord(operation, ok));   // before the operation is done
//   if (log.Due(now)) Send(log.Take());
//
// Thread contract: not synchronized; RankCore's mutex guards it.
//
// Invariants: records leave in the order in which they were added. If the
// executor does not read, at most kMaxKeptResultRecords are kept: later ones
// are counted and dropped.
#ifndef MAYPOLE_CLIENT_ENGINE_RESULT_LOG_H_
#define MAYPOLE_CLIENT_ENGINE_RESULT_LOG_H_

#include <cstdint>
#include <deque>
#include <optional>

#include "client/engine/operation.h"
#include "common/wire/session_messages.h"

namespace maypole {

inline constexpr int64_t kResultPauseNs = 100'000'000;

// The record of an operation that has ended; reads the result.
session::ResultRecord MakeResultRecord(const Operation& operation, bool ok);

class ResultLog {
 public:
  void Add(const session::ResultRecord& record);
  bool empty() const { return records_.empty() && dropped_ == 0; }
  // There are enough records for a message.
  bool full() const { return records_.size() >= kMaxResultRecords; }
  // True if a message should leave now.
  bool Due(int64_t now_ns);
  // The oldest records.
  session::ResultRecords Take();
  // The message that Take() has returned could not be sent.
  void PutBack(const session::ResultRecords& message);

 private:
  std::deque<session::ResultRecord> records_;
  uint32_t dropped_ = 0;
  // Since when Due() has seen records that have not left.
  std::optional<int64_t> since_ns_;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_ENGINE_RESULT_LOG_H_
