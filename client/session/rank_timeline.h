// RankTimeline: how a rank starts and stops the job's timeline.
//
// Purpose: asks the executor, waits for its answer and, if this rank's executor
// is to write the file, opens it and sends its descriptor: so the file belongs
// to this user, and a relative path starts at this process's directory.
//
// Thread contract: any thread may call any function. Start() and Stop() wait
// for kTimeout at most; while waits() is true, another thread must pass the
// executor's replies to OnReply().
#ifndef MAYPOLE_CLIENT_SESSION_RANK_TIMELINE_H_
#define MAYPOLE_CLIENT_SESSION_RANK_TIMELINE_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "common/status.h"
#include "common/system/fd.h"
#include "common/wire/session_messages.h"

namespace maypole {

// Opens a timeline's file, new or truncated. The error names it.
Status OpenTimelineFile(const std::string& path, Fd* out);

class RankTimeline {
 public:
  static constexpr auto kTimeout = std::chrono::seconds(10);

  // `send` sends a message to the executor; `epoch` says why the epoch is over
  // (kOk: it is not).
  RankTimeline(std::function<void(const void*, size_t, Fd)> send,
               std::function<Status()> epoch)
      : send_(std::move(send)), epoch_(std::move(epoch)) {}

  Status Start(const std::string& path, bool mark_cycles);
  Status Stop();

  void OnReply(const session::TimelineReply& reply);
  bool waits() const { return waits_.load(std::memory_order_relaxed); }

 private:
  Status Ask(const session::TimelineRequest& request,
             session::TimelineReply* reply);
  Status SendFile(const std::string& path, uint32_t number);

  const std::function<void(const void*, size_t, Fd)> send_;
  const std::function<Status()> epoch_;

  std::mutex call_mutex_;  // held during Start() and Stop()
  uint32_t started_ = 0;   // the timeline that this rank has started or joined

  std::mutex mutex_;
  std::condition_variable replied_;
  std::optional<session::TimelineReply> reply_;
  bool stop_asked_ = false;
  std::atomic<bool> waits_{false};
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_SESSION_RANK_TIMELINE_H_
