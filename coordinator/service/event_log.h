// EventLog: an EventRing with its own lock, for any number of readers.
//
// Purpose: keeps the core's log lines, in the core's order, for the operator's
// WatchEvents. Adding an event copies it. A reader takes at most kEventsPage
// pointers under the lock, and writes the events to the network without it. So
// a follower that is slow or dead blocks nothing: it misses the events that the
// ring has dropped, and is told how many.
//
// Thread contract: any thread may call any method.
#ifndef MAYPOLE_COORDINATOR_SERVICE_EVENT_LOG_H_
#define MAYPOLE_COORDINATOR_SERVICE_EVENT_LOG_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

#include "coordinator/core/actions.h"
#include "coordinator/core/admin/events.h"

namespace maypole::coordinator {

// Followers at a time; each occupies a thread.
inline constexpr int kMaxFollowers = 64;
inline constexpr size_t kEventsPage = 256;

class EventLog {
 public:
  void Add(const Log& log);
  // The number of the newest event; 0 if there was none.
  uint64_t last() const;
  EventRing::Page Read(const std::string& job, uint64_t after) const;
  // Blocks until there is an event after that number, the time has passed, or
  // Stop() is called. False after Stop(): there will be no more events.
  bool Wait(uint64_t after, std::chrono::milliseconds time);
  void Stop();

  // False if there are kMaxFollowers already.
  bool BeginToFollow();
  void EndToFollow();

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  EventRing ring_;
  int followers_ = 0;
  bool stopped_ = false;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_EVENT_LOG_H_
