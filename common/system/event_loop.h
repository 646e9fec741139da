// EventLoop: waits for descriptors, timers and functions from other threads,
// and calls back.
//
// Purpose: epoll without its trap. epoll watches an open file, not a number: a
// descriptor that is closed here while another process holds a copy of it
// (SCM_RIGHTS, fork) goes on being reported, and nobody can take it off. Here a
// registration owns its descriptor, so it is always taken off before it is
// closed or handed away.
//
//   EventLoop loop;
//   WatchedFd socket;
//   Status s = loop.Watch(std::move(fd), {.readable = [&] { Read(socket.fd());
//   }},
//                         &socket);
//   while (s.ok() && !done) s = loop.RunOnce(deadline);
//   Fd mine = socket.Release();  // no longer watched, still open
//
// A round is Wait() and Dispatch(). Wait() sleeps until something is ready or
// the deadline has passed. Dispatch() then calls, in this order:
//   1. what was posted, in the order of Post();
//   2. timers that are due, the earliest first;
//   3. readable and writable callbacks: Turn::kFirst, then kNormal, then kLast;
//      within a turn in the order in which the kernel reported them.
// What becomes ready during Dispatch() is called in the next round, except that
// an event of this round is dropped when its registration or timer has gone.
//
// A deadline costs nothing, while setting a timer is a system call: what
// changes its time in each round is better a deadline.
//
// Levels, not edges: a callback that leaves data unread is called again in the
// next round. readable() is also called at end of file, and each wanted
// callback on an error of the descriptor: read or write to learn which. epoll
// knows no regular files: one is always ready.
//
// Processes and signals are descriptors as well: a pidfd is readable when the
// process has ended, a signalfd when a signal is pending.
//
// Thread contract: one thread makes all calls, except Post(), which any thread
// may call until the loop is destroyed. Callbacks run on the loop's thread,
// only within Dispatch(), and may call anything here but Wait(), Dispatch(),
// RunOnce() and the loop's destructor. After fork() a child may only exec.
//
// Invariants:
// * a descriptor is watched exactly as long as a WatchedFd holds it;
// * once Reset(), Release(), Cancel() or a destructor has returned, that
//   registration's callbacks are not called any more, not even for an event of
//   the same round. A callback may destroy its own registration: it lives until
//   it has returned;
// * the loop outlives its registrations and timers;
// * a descriptor's flags (O_NONBLOCK) are the caller's and stay as they are.
//
// Built on standalone Asio, which event_loop.cc alone includes. An event costs
// about 1 us of CPU time more than with bare epoll (2.6 -> 3.5 us, of a wake-up
// and an answer through eventfds).
#ifndef MAYPOLE_COMMON_SYSTEM_EVENT_LOOP_H_
#define MAYPOLE_COMMON_SYSTEM_EVENT_LOOP_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "common/status.h"
#include "common/system/fd.h"

namespace maypole {

class EventLoop;

// When in a round a descriptor's callbacks are called.
enum class Turn { kFirst = 0, kNormal = 1, kLast = 2 };

struct WatchOptions {
  std::function<void()> readable;  // empty: never wanted
  std::function<void()> writable;  // empty: never wanted
  // Writability is usually wanted only while output is waiting, see
  // WatchedFd::WantWrite().
  bool want_read = true;
  bool want_write = false;
  Turn turn = Turn::kNormal;
};

// A descriptor and its registration. Move only; empty by default.
class WatchedFd {
 public:
  WatchedFd();
  WatchedFd(WatchedFd&& other) noexcept;
  WatchedFd& operator=(WatchedFd&& other) noexcept;
  ~WatchedFd();  // as Reset()

  bool valid() const { return state_ != nullptr; }
  // To read, write, send; never to close. -1 if empty.
  int fd() const;

  // Whether the callback is to be called. False: what is pending is dropped
  // too. True for a callback that was not given: no effect.
  void WantRead(bool wanted);
  void WantWrite(bool wanted);

  // Takes the descriptor off the loop and gives it to the caller, open.
  Fd Release();
  // Takes the descriptor off the loop and closes it.
  void Reset() { Release().Reset(); }

 private:
  friend class EventLoop;
  struct State;
  std::shared_ptr<State> state_;
};

// Calls back once, at or after a time that can be set again and again.
class LoopTimer {
 public:
  using Time = std::chrono::steady_clock::time_point;

  LoopTimer(EventLoop* loop, std::function<void()> callback);
  ~LoopTimer();  // as Cancel()
  LoopTimer(const LoopTimer&) = delete;
  LoopTimer& operator=(const LoopTimer&) = delete;

  // Replaces an earlier time. A time that has passed: in the next round.
  void Set(Time when);
  void Cancel();
  bool pending() const;

 private:
  friend class EventLoop;
  struct State;
  std::shared_ptr<State> state_;
};

class EventLoop {
 public:
  using Time = LoopTimer::Time;

  EventLoop();
  ~EventLoop();  // functions that are still posted are dropped
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // *out owns the descriptor from now on; what *out held is let go. On an error
  // (the process or the system is out of descriptors, or has watches enough)
  // the descriptor is closed and *out is empty.
  Status Watch(Fd fd, WatchOptions options, WatchedFd* out);

  // From any thread: `function` is called in the next round, which begins at
  // once.
  void Post(std::function<void()> function);

  // Returns when there is something to dispatch, or at the deadline. An error:
  // the loop could not be made, for the process has no descriptors left.
  Status Wait(std::optional<Time> deadline);
  void Dispatch();
  // A round.
  Status RunOnce(std::optional<Time> deadline = std::nullopt);

 private:
  friend class WatchedFd;
  friend class LoopTimer;
  struct Impl;
  std::unique_ptr<Impl> impl_;  // null: failure_ says why
  Status failure_;
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_SYSTEM_EVENT_LOOP_H_
