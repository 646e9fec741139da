// Poller: the descriptors that the executor's loop waits for, each with a tag.
//
// Purpose: epoll without its trap. epoll watches an open file, not a number: a
// descriptor that is closed here while another process holds a copy of it goes
// on being reported, and nobody can take it off. A Registration is taken off
// when it is destroyed: it stands behind its descriptor, and goes first.
//
//   Fd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
//   Registration watch = poller.Watch(wake.get(), kBoardWake);
//   for (const uint64_t tag : poller.Wait(500)) ...
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
      : epoll_(o.epoll_), fd_(std::exchange(o.fd_, -1)), tag_(o.tag_) {}
  Registration& operator=(Registration&& o) noexcept;
  ~Registration() { Reset(); }

  // Whether it is also reported when it can be written; at first it is not.
  void WantWrite(bool wanted);
  void Reset();

 private:
  friend class Poller;
  Registration(int epoll, int fd, uint64_t tag);

  int epoll_ = -1;
  int fd_ = -1;
  uint64_t tag_ = 0;
};

// Outlives its registrations.
class Poller {
 public:
  Poller();

  // Reports the tag when the descriptor can be read, as long as it can. The
  // descriptor must be open as long as the registration is there.
  Registration Watch(int fd, uint64_t tag) {
    return Registration(epoll_.get(), fd, tag);
  }
  // The tags of what is ready; none after ms milliseconds. Valid until the next
  // call.
  absl::StatusOr<std::span<const uint64_t>> Wait(int64_t ms);

 private:
  Fd epoll_;
  std::vector<uint64_t> tags_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_POLLER_H_
