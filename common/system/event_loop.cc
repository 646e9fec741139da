#include "common/system/event_loop.h"

#include <cxxabi.h>
#include <fcntl.h>

#include <algorithm>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <asio/system_error.hpp>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <typeinfo>
#include <utility>
#include <vector>

namespace maypole {
namespace {

enum Direction { kRead = 0, kWrite = 1 };

[[maybe_unused]] void PrintBlocked(const std::string& callback,
                                   std::chrono::milliseconds time) {
  std::fprintf(stderr, "an event loop was blocked for %d ms by %s\n",
               static_cast<int>(time.count()), callback.c_str());
}

std::string NameOf(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), std::free);
  return name == nullptr ? type.name() : name.get();
}

Status FromAsio(const asio::error_code& error, const char* what) {
  return ErrnoStatus(error.value(), what);
}

}  // namespace

// Shared by Asio's handlers and the WatchedFd, which may be destroyed before
// the handlers run.
struct WatchedFd::State {
  // The state of one direction. At most one of waiting and ready is set.
  struct Interest {
    std::function<void()> callback;
    bool wanted = false;
    bool waiting = false;  // Asio will call our handler
    bool ready = false;    // the next Dispatch() calls the callback
  };

  State(EventLoop::Impl* its_loop, asio::io_context& context)
      : loop(its_loop), descriptor(context) {}

  EventLoop::Impl* const loop;
  asio::posix::stream_descriptor descriptor;
  Interest interests[2];
  Turn turn = Turn::kNormal;
};

struct LoopTimer::State {
  State(EventLoop::Impl* its_loop, asio::io_context& context)
      : loop(its_loop), timer(context) {}

  EventLoop::Impl* const loop;
  asio::steady_timer timer;
  std::function<void()> callback;
  // Incremented by each Set() and Cancel(): Asio's handler for an earlier
  // setting may still be called.
  uint64_t setting = 0;
  bool pending = false;
};

struct EventLoop::Impl {
  struct ReadyFd {
    std::shared_ptr<WatchedFd::State> state;
    Direction direction;
  };
  struct DueTimer {
    std::shared_ptr<LoopTimer::State> state;
    uint64_t setting;
  };

  // Throws if no descriptors are left: Asio makes its epoll with the timer.
  Impl() : idle(context) {}

  void Arm(const std::shared_ptr<WatchedFd::State>& state, Direction direction);
  void Want(const std::shared_ptr<WatchedFd::State>& state, Direction direction,
            bool wanted);
  void Arm(const std::shared_ptr<LoopTimer::State>& state);
  bool SomethingToDo();
  void Call(const std::function<void()>& callback) const;
  void Dispatch(const ReadyFd& event);

  asio::io_context context{1};  // one thread runs it
  asio::steady_timer idle;
  asio::executor_work_guard<asio::io_context::executor_type> work{
      context.get_executor()};
  std::vector<ReadyFd> ready;
  std::vector<DueTimer> due;
#ifdef NDEBUG
  Blocked blocked;
#else
  Blocked blocked = PrintBlocked;
#endif
  std::mutex mutex;
  std::vector<std::function<void()>> posted;  // under mutex
};

void EventLoop::Impl::Arm(const std::shared_ptr<WatchedFd::State>& state,
                          Direction direction) {
  WatchedFd::State::Interest& interest = state->interests[direction];
  if (!interest.wanted || interest.waiting || interest.ready) return;
  interest.waiting = true;
  state->descriptor.async_wait(
      direction == kRead ? asio::posix::descriptor_base::wait_read
                         : asio::posix::descriptor_base::wait_write,
      // The error is ignored: the callback finds out by reading or writing. (If
      // the descriptor is no longer watched, `wanted` is false.)
      [this, state, direction](const asio::error_code&) {
        WatchedFd::State::Interest& i = state->interests[direction];
        i.waiting = false;
        if (!i.wanted) return;
        i.ready = true;
        ready.push_back({state, direction});
      });
}

void EventLoop::Impl::Want(const std::shared_ptr<WatchedFd::State>& state,
                           Direction direction, bool wanted) {
  WatchedFd::State::Interest& interest = state->interests[direction];
  interest.wanted = wanted && interest.callback != nullptr;
  if (!interest.wanted) interest.ready = false;
  Arm(state, direction);
}

void EventLoop::Impl::Arm(const std::shared_ptr<LoopTimer::State>& state) {
  state->timer.async_wait(
      [this, state, setting = state->setting](const asio::error_code&) {
        if (state->setting == setting) due.push_back({state, setting});
      });
}

bool EventLoop::Impl::SomethingToDo() {
  if (!ready.empty() || !due.empty()) return true;
  const std::lock_guard lock(mutex);
  return !posted.empty();
}

void EventLoop::Impl::Call(const std::function<void()>& callback) const {
  if (!blocked) return callback();
  const std::type_info& type = callback.target_type();  // outlives `callback`
  const auto begin = std::chrono::steady_clock::now();
  callback();
  const auto time = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - begin);
  if (time > kBlockedLimit) blocked(NameOf(type), time);
}

void EventLoop::Impl::Dispatch(const ReadyFd& event) {
  WatchedFd::State::Interest& interest =
      event.state->interests[event.direction];
  if (!interest.ready) return;
  interest.ready = false;
  Call(interest.callback);
  Arm(event.state, event.direction);
}

// --- EventLoop ---------------------------------------------------------------

EventLoop::EventLoop() {
  try {
    impl_ = std::make_unique<Impl>();
  } catch (const asio::system_error& e) {
    failure_ = FromAsio(e.code(), "cannot make an event loop");
  }
}

EventLoop::~EventLoop() = default;

Status EventLoop::Watch(Fd fd, WatchOptions options, WatchedFd* out) {
  out->Reset();
  if (!failure_.ok()) return failure_;
  auto state = std::make_shared<WatchedFd::State>(impl_.get(), impl_->context);
  asio::error_code error;
  state->descriptor.assign(fd.get(), error);
  if (error) return FromAsio(error, "cannot watch a descriptor");
  const int number = fd.Release();
  // Asio sets O_NONBLOCK once; restore it. Other processes may share the open
  // file (standard output) and rely on its flags.
  const int flags = fcntl(number, F_GETFL);
  state->descriptor.native_non_blocking(true, error);
  if (flags >= 0) fcntl(number, F_SETFL, flags);
  state->turn = options.turn;
  state->interests[kRead].callback = std::move(options.readable);
  state->interests[kWrite].callback = std::move(options.writable);
  out->state_ = std::move(state);
  out->WantRead(options.want_read);
  out->WantWrite(options.want_write);
  return Status();
}

void EventLoop::Post(std::function<void()> function) {
  if (impl_ == nullptr) return;
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->posted.push_back(std::move(function));
    if (impl_->posted.size() > 1) return;  // the loop is being woken already
  }
  asio::post(impl_->context, [] {});
}

void EventLoop::OnBlocked(Blocked blocked) {
  if (impl_ != nullptr) impl_->blocked = std::move(blocked);
}

Status EventLoop::Wait(std::optional<Time> deadline) {
  if (!failure_.ok()) return failure_;
  while (!impl_->SomethingToDo()) {
    if (deadline) {
      impl_->context.run_one_until(*deadline);
    } else {
      impl_->context.run_one();
    }
    impl_->context.poll();
    if (deadline && std::chrono::steady_clock::now() >= *deadline) break;
  }
  return Status();
}

void EventLoop::Dispatch() {
  if (impl_ == nullptr) return;
  std::vector<std::function<void()>> posted;
  {
    const std::lock_guard lock(impl_->mutex);
    posted.swap(impl_->posted);
  }
  const auto due = std::exchange(impl_->due, {});
  auto ready = std::exchange(impl_->ready, {});
  std::stable_sort(ready.begin(), ready.end(),
                   [](const auto& a, const auto& b) {
                     return a.state->turn < b.state->turn;
                   });
  for (const auto& function : posted) impl_->Call(function);
  for (const Impl::DueTimer& timer : due) {
    if (timer.state->setting != timer.setting) continue;
    timer.state->pending = false;
    impl_->Call(timer.state->callback);
  }
  for (const Impl::ReadyFd& event : ready) impl_->Dispatch(event);
}

Status EventLoop::RunOnce(std::optional<Time> deadline) {
  const Status s = Wait(deadline);
  if (s.ok()) Dispatch();
  return s;
}

// --- WatchedFd ---------------------------------------------------------------

WatchedFd::WatchedFd() = default;
WatchedFd::WatchedFd(WatchedFd&& other) noexcept = default;
WatchedFd::~WatchedFd() { Reset(); }

WatchedFd& WatchedFd::operator=(WatchedFd&& other) noexcept {
  if (this != &other) {
    Reset();
    state_ = std::move(other.state_);
  }
  return *this;
}

int WatchedFd::fd() const {
  return state_ == nullptr ? -1 : state_->descriptor.native_handle();
}

void WatchedFd::WantRead(bool wanted) {
  if (state_ != nullptr) state_->loop->Want(state_, kRead, wanted);
}

void WatchedFd::WantWrite(bool wanted) {
  if (state_ != nullptr) state_->loop->Want(state_, kWrite, wanted);
}

Fd WatchedFd::Release() {
  if (state_ == nullptr) return Fd();
  WantRead(false);
  WantWrite(false);
  const auto state = std::exchange(state_, nullptr);
  return Fd(state->descriptor.release());
}

// --- LoopTimer ---------------------------------------------------------------

LoopTimer::LoopTimer(EventLoop* loop, std::function<void()> callback) {
  if (loop->impl_ == nullptr) return;
  state_ = std::make_shared<State>(loop->impl_.get(), loop->impl_->context);
  state_->callback = std::move(callback);
}

LoopTimer::~LoopTimer() { Cancel(); }

void LoopTimer::Set(Time when) {
  if (state_ == nullptr) return;
  ++state_->setting;
  state_->pending = true;
  state_->timer.expires_at(when);
  state_->loop->Arm(state_);
}

void LoopTimer::Cancel() {
  if (state_ == nullptr || !state_->pending) return;
  ++state_->setting;
  state_->pending = false;
  state_->timer.cancel();
}

bool LoopTimer::pending() const { return state_ != nullptr && state_->pending; }

}  // namespace maypole
