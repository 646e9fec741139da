// Scheduler: the simulation's clock and its one thread.
//
// Purpose: each part schedules events at times that it draws from the seed, so
// the seed decides which event comes next. Time stands still during an event,
// then jumps to the next one.
//
// An event belongs to an owner: if the owner no longer exists at that time (its
// process has died), the event is dropped.
//
// Thread contract: not synchronized.
//
// Invariants: events happen in the order of their times, those with equal times
// in the order in which they were scheduled; equal seeds give equal runs.
#ifndef MAYPOLE_TESTS_SIMULATION_SCHEDULER_H_
#define MAYPOLE_TESTS_SIMULATION_SCHEDULER_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace maypole::simulation {

inline constexpr int64_t kMicrosecond = 1000;
inline constexpr int64_t kMillisecond = 1000 * kMicrosecond;
inline constexpr int64_t kSecond = 1000 * kMillisecond;

class Scheduler {
 public:
  using Owner = std::weak_ptr<const void>;

  int64_t now() const { return now_; }  // ns
  uint64_t steps() const { return steps_; }
  // The time of the next event. Requires !empty().
  int64_t next() const { return events_.front().time; }
  bool empty() const { return events_.empty(); }

  void At(int64_t time, Owner owner, std::function<void()> what) {
    events_.push_back({time > now_ ? time : now_, ++last_, std::move(owner),
                       std::move(what)});
    std::push_heap(events_.begin(), events_.end(), Later());
  }
  void After(int64_t delay, Owner owner, std::function<void()> what) {
    At(now_ + delay, std::move(owner), std::move(what));
  }
  // Runs the next event. Returns false if there is none.
  bool Step() {
    while (!events_.empty()) {
      std::pop_heap(events_.begin(), events_.end(), Later());
      Event event = std::move(events_.back());
      events_.pop_back();
      const std::shared_ptr<const void> owner = event.owner.lock();
      if (owner == nullptr) continue;
      now_ = event.time > now_ ? event.time : now_;
      ++steps_;
      event.what();
      return true;
    }
    return false;
  }

 private:
  struct Event {
    int64_t time;
    uint64_t number;
    Owner owner;
    std::function<void()> what;
  };
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return a.time != b.time ? a.time > b.time : a.number > b.number;
    }
  };

  std::vector<Event> events_;  // a heap
  int64_t now_ = kSecond;
  uint64_t last_ = 0;
  uint64_t steps_ = 0;
};

// A repeated action that many parts may ask for: at most one is scheduled at a
// time, at the earliest time that was asked for.
class Turn {
 public:
  Turn(Scheduler* scheduler, std::function<void()> what)
      : scheduler_(scheduler), what_(std::move(what)) {}

  void Ask(int64_t delay, const std::shared_ptr<const void>& owner) {
    const int64_t time = scheduler_->now() + delay;
    if (number_ != 0 && at_ <= time) return;
    at_ = time;
    const uint64_t number = ++last_;
    number_ = number;
    scheduler_->At(time, owner, [this, number] {
      if (number != number_) return;  // an earlier one was asked for later
      number_ = 0;
      what_();
    });
  }
  // Call when the owner of the scheduled one is gone: none is scheduled then.
  void Forget() { number_ = 0; }

 private:
  Scheduler* const scheduler_;
  const std::function<void()> what_;
  int64_t at_ = 0;
  uint64_t number_ = 0;  // of the turn that counts; 0: none is scheduled
  uint64_t last_ = 0;
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_SCHEDULER_H_
