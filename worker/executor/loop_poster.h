// LoopPoster: posts functions to the executor's loop from other threads, and
// drops them once the object that posted them is no longer current.
//
// Purpose: a transport, a network or a file calls back from its threads. When
// it is replaced or dropped, its posted functions that have not run yet must
// not run.
//
// Thread contract: the loop's thread; any thread may call the functions that
// Renew() and Current() return.
#ifndef MAYPOLE_WORKER_EXECUTOR_LOOP_POSTER_H_
#define MAYPOLE_WORKER_EXECUTOR_LOOP_POSTER_H_

#include <cstdint>
#include <functional>
#include <utility>

#include "worker/executor/executor_system.h"

namespace maypole::worker {

class LoopPoster {
 public:
  using Post = std::function<void(std::function<void()>)>;

  // `system` must outlive this object, and this object the functions it posts.
  explicit LoopPoster(ExecutorSystem* system) : system_(*system) {}

  // Returns a function that posts until the next Cancel() or Renew().
  Post Current() {
    return [this, number = number_](std::function<void()> function) {
      system_.Post([this, number, function = std::move(function)] {
        if (number_ == number) function();
      });
    };
  }
  // Functions that were posted and have not run yet do not run.
  void Cancel() { ++number_; }
  Post Renew() {
    Cancel();
    return Current();
  }

 private:
  ExecutorSystem& system_;
  uint64_t number_ = 0;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_LOOP_POSTER_H_
