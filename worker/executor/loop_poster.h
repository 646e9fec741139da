// LoopPoster: posts functions to the executor's loop from other threads, for as
// long as what posts them is current.
//
// Purpose: a transport, a network or a file calls back from its threads. When
// it is replaced or dropped, what it has posted and what has not run yet must
// not run any more.
//
// Thread contract: the loop's thread; what Renew() and Current() return may be
// called by any.
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

  // `system` must outlive this object, and this object what it posts.
  explicit LoopPoster(ExecutorSystem* system) : system_(*system) {}

  // Posts for what is current now.
  Post Current() {
    return [this, number = number_](std::function<void()> function) {
      system_.Post([this, number, function = std::move(function)] {
        if (number_ == number) function();
      });
    };
  }
  // Nothing is current any more: what was posted does not run.
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
