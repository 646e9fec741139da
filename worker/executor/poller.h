// Poller: waits for the descriptors of the executor's loop, each with a tag.
//
// Purpose: a safe epoll. epoll watches an open file, not a descriptor number:
// if a descriptor is closed here while another process holds a copy, epoll
// keeps reporting it and it can no longer be removed. A Registration removes
// the descriptor when it is destroyed; declare it after its descriptor, so that
// it is destroyed first.
//
//   Fd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
//   Registration watch = poller.Watch(wake.get(), kBoardWake);
//   for (const uint64_t tag : poller.Wait(500)) ...
//
// The executor does not use common/system/event_loop.h: Asio takes about 1 us
// of CPU time more per event, and ranks wake this loop for each operation that
// spans nodes.
//
// Thread contract: one thread.
#ifndef MAYPOLE_WORKER_EXECUTOR_POLLER_H_
#define MAYPOLE_WORKER_EXECUTOR_POLLER_H_

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/system/fd.h"

namespace maypole::worker {

class Registration {
 public:
  Registration() = default;
  Registration(Registration&& o) noexcept
      : epoll_(o.epoll_),
        fd_(std::exchange(o.fd_, -1)),
        tag_(o.tag_),
        events_(o.events_) {}
  Registration& operator=(Registration&& o) noexcept;
  ~Registration() { Reset(); }

  // Sets whether the descriptor is also reported when it can be written;
  // initially it is not.
  void WantWrite(bool wanted);
  void Reset();

 private:
  friend class Poller;
  Registration(int epoll, int fd, uint64_t tag, uint32_t events);

  int epoll_ = -1;
  int fd_ = -1;
  uint64_t tag_ = 0;
  uint32_t events_ = 0;  // those registered with the kernel
};

// The poller must outlive its registrations.
class Poller {
 public:
  Poller();

  // Wait() returns the tag whenever the descriptor can be read. The descriptor
  // must stay open as long as the registration exists.
  Registration Watch(int fd, uint64_t tag);
  // As Watch(), but edge-triggered: Wait() returns the tag after a write to the
  // eventfd, and not again before the next write, even if nobody has read the
  // eventfd.
  Registration WatchWrites(int eventfd, uint64_t tag);
  // Returns the tags of ready descriptors, or none after `ms` milliseconds. The
  // span is valid until the next call.
  absl::StatusOr<std::span<const uint64_t>> Wait(int64_t ms);
  // Can be read when Wait() would return tags at once.
  int fd() const { return epoll_.get(); }

 private:
  Fd epoll_;
  std::vector<uint64_t> tags_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_POLLER_H_
