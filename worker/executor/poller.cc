#include "worker/executor/poller.h"

#include <sys/epoll.h>

#include <cerrno>

#include "common/absl_status.h"

namespace maypole::worker {
namespace {

constexpr int kMaxEvents = 512;  // more than the possible descriptors

}  // namespace

Registration::Registration(int epoll, int fd, uint64_t tag, uint32_t events)
    : epoll_(epoll), fd_(fd), tag_(tag), events_(events) {
  epoll_event event{};
  event.events = events_;
  event.data.u64 = tag;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, fd_, &event);
}

Registration& Registration::operator=(Registration&& o) noexcept {
  if (this != &o) {
    Reset();
    epoll_ = o.epoll_;
    fd_ = std::exchange(o.fd_, -1);
    tag_ = o.tag_;
    events_ = o.events_;
  }
  return *this;
}

void Registration::WantWrite(bool wanted) {
  const uint32_t events = wanted ? EPOLLIN | EPOLLOUT : EPOLLIN;
  if (std::exchange(events_, events) == events) return;
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag_;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, fd_, &event);
}

void Registration::Reset() {
  if (fd_ < 0) return;
  epoll_ctl(epoll_, EPOLL_CTL_DEL, std::exchange(fd_, -1), nullptr);
}

Registration Poller::Watch(int fd, uint64_t tag) {
  return Registration(epoll_.get(), fd, tag, EPOLLIN);
}

Registration Poller::WatchWrites(int eventfd, uint64_t tag) {
  return Registration(epoll_.get(), eventfd, tag, EPOLLIN | EPOLLET);
}

Poller::Poller() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {}

absl::StatusOr<std::span<const uint64_t>> Poller::Wait(int64_t ms) {
  epoll_event events[kMaxEvents];
  const int n =
      epoll_wait(epoll_.get(), events, kMaxEvents, static_cast<int>(ms));
  if (n < 0 && errno != EINTR) return ToAbsl(ErrnoStatus(errno, "epoll_wait"));
  tags_.clear();
  for (int i = 0; i < n; ++i) tags_.push_back(events[i].data.u64);
  return std::span<const uint64_t>(tags_);
}

}  // namespace maypole::worker
