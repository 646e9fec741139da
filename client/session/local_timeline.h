// LocalTimeline: the timeline of a job of one rank without an agent, which
// writes the file itself.
//
// Thread contract: any thread may call any function. Record() may write to the
// file.
#ifndef MAYPOLE_CLIENT_SESSION_LOCAL_TIMELINE_H_
#define MAYPOLE_CLIENT_SESSION_LOCAL_TIMELINE_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "client/engine/operation.h"
#include "common/status.h"
#include "common/system/fd.h"
#include "common/timeline/trace.h"

namespace maypole {

class LocalTimeline {
 public:
  // Does nothing if it is on.
  Status Start(const std::string& path);
  // Completes the file. Does nothing if it is off.
  Status Stop();

  bool on() const { return on_.load(std::memory_order_relaxed); }
  static int64_t Now();
  // The operation has ended; its moments are set.
  void Record(const Operation& operation);

 private:
  // Writes what the trace has buffered, if it is at least `least` bytes.
  void Write(size_t least);

  std::atomic<bool> on_{false};
  std::mutex mutex_;
  Fd file_;
  std::optional<Trace> trace_;
  std::string text_;
  Status status_;  // of writing
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_SESSION_LOCAL_TIMELINE_H_
