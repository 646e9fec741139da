// EventLog: the events ring under its own lock, for any number of readers.
//
// Purpose: the core's log lines, in the core's order, for the operator's
// WatchEvents. Adding one costs its copy; a reader takes at most kEventsPage
// pointers under the lock and writes them to its network without it. So a
// follower that is slow, or gone without a word, holds up nobody: it misses
// what the ring has forgotten, and is told how much.
//
// Thread contract: all methods from any thread.
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

// Followers at a time; each costs a thread.
inline constexpr int kMaxFollowers = 64;
inline constexpr size_t kEventsPage = 256;

class EventLog {
 public:
  void Add(const Log& log);
  EventRing::Page Read(const std::string& job, uint64_t after) const;
  // Until there is an event after that number, or the time has passed, or
  // Stop(). False: stopped, there will be no more.
  bool Wait(uint64_t after, std::chrono::milliseconds time);
  void Stop();

  // False: there are kMaxFollowers already.
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
