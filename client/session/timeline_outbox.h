// TimelineOutbox: the records that a rank has made for the job's timeline and
// not yet sent to its executor.
//
// Purpose: Add() is called when an operation ends, and only appends to a
// bounded buffer. The progress thread calls Step() from time to time, which
// sends what is there. When the timeline has stopped, Step() waits a moment for
// operations that were submitted before, then sends the last message.
//
//   outbox.Add(word, record);                        // any thread
//   const int ms = outbox.Step(word, core.unrecorded(), now_ms, send);
//
// `word` is BoardHeader.timeline.
//
// Thread contract: Add() from any thread, Step() from one thread at a time.
//
// Invariants: the buffer never exceeds kMaxBytes; a record that does not fit is
// counted, and the next message carries the count. After the message with
// `last` set nothing is sent for that timeline.
#ifndef MAYPOLE_CLIENT_SESSION_TIMELINE_OUTBOX_H_
#define MAYPOLE_CLIENT_SESSION_TIMELINE_OUTBOX_H_

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "client/engine/operation.h"
#include "common/status.h"
#include "common/timeline/record.h"
#include "common/wire/session_messages.h"

namespace maypole {

// The record of an operation of this rank that has ended.
TimelineRecord RecordOf(const Operation& operation, int rank);

class TimelineOutbox {
 public:
  static constexpr size_t kMaxBytes = 8 << 20;
  static constexpr int kPeriodMs = 100;
  // How long after its end a timeline waits for operations that were submitted
  // while it was on.
  static constexpr int64_t kLateMs = 300;
  // What Step() returns while there is nothing to do.
  static constexpr int kNever = 1 << 30;

  // Returns an error if the message cannot be sent now.
  using Send = std::function<Status(const void* message, size_t bytes)>;

  void Add(uint32_t word, const TimelineRecord& record);
  // Returns the milliseconds until it should be called again. `pending`:
  // operations for which Add() will still be called. leaving: sends everything
  // now.
  int Step(uint32_t word, uint32_t pending, int64_t now_ms, const Send& send,
           bool leaving = false);

 private:
  void Turn(uint32_t number);  // under mutex_
  bool SendAll(const Send& send);
  Status SendOne(std::string_view records, bool last, const Send& send);

  std::mutex mutex_;
  uint32_t number_ = 0;  // of the timeline
  std::string buffer_;
  uint32_t dropped_ = 0;

  // Of Step().
  std::string sending_;
  size_t sent_ = 0;  // bytes of it
  uint32_t sending_number_ = 0;
  uint32_t sending_dropped_ = 0;
  uint32_t last_sent_ = 0;  // the timeline whose last message was sent
  int64_t next_ms_ = 0;
  int64_t off_since_ms_ = 0;  // 0: it is on
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_SESSION_TIMELINE_OUTBOX_H_
