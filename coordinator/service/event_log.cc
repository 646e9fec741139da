#include "coordinator/service/event_log.h"

namespace maypole::coordinator {

void EventLog::Add(const Log& log) {
  const double now = std::chrono::duration<double>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count();
  std::lock_guard<std::mutex> lock(mutex_);
  ring_.Add(now, log.level, log.line);
  if (followers_ > 0) changed_.notify_all();
}

uint64_t EventLog::last() const {
  std::lock_guard lock(mutex_);
  return ring_.last();
}

EventRing::Page EventLog::Read(const std::string& job, uint64_t after) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return ring_.Read(job, after, kEventsPage);
}

bool EventLog::Wait(uint64_t after, std::chrono::milliseconds time) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, time,
                    [&] { return stopped_ || ring_.last() > after; });
  return !stopped_;
}

void EventLog::Stop() {
  std::lock_guard<std::mutex> lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

bool EventLog::BeginToFollow() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (followers_ >= kMaxFollowers) return false;
  ++followers_;
  return true;
}

void EventLog::EndToFollow() {
  std::lock_guard<std::mutex> lock(mutex_);
  --followers_;
}

}  // namespace maypole::coordinator
