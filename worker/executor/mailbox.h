// Mailbox: passes functions from other threads to the executor's loop.
//
// Purpose: Post() queues a function and wakes the loop through an eventfd; the
// loop takes the functions and calls them in order.
//
// Thread contract: Post() from any thread; the rest from the loop.
#ifndef MAYPOLE_WORKER_EXECUTOR_MAILBOX_H_
#define MAYPOLE_WORKER_EXECUTOR_MAILBOX_H_

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "common/system/fd.h"

namespace maypole::worker {

class Mailbox {
 public:
  Mailbox() : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  int fd() const { return wake_.get(); }

  void Post(std::function<void()> function) {
    {
      std::lock_guard lock(mutex_);
      posted_.push_back(std::move(function));
    }
    const uint64_t one = 1;
    // Fails only if the counter is full; then the loop is awake anyway.
    [[maybe_unused]] const ssize_t n = write(wake_.get(), &one, sizeof(one));
  }

  // Returns the functions that were posted since the last call.
  std::vector<std::function<void()>> TakeAll() {
    uint64_t count;
    [[maybe_unused]] const ssize_t n = read(wake_.get(), &count, sizeof(count));
    std::lock_guard lock(mutex_);
    return std::exchange(posted_, {});
  }

 private:
  Fd wake_;
  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_MAILBOX_H_
