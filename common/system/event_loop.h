// EventLoop: waits for descriptors, timers and functions posted by other
// threads, and calls callbacks.
//
// Purpose: epoll without its pitfall. epoll watches an open file, not a
// descriptor number: if a watched descriptor is closed while another process
// holds a copy (SCM_RIGHTS, fork), epoll still reports it, and it can no longer
// be removed. Here a registration owns its descriptor, so the descriptor is
// always removed from epoll before it is closed or released.
//
//   EventLoop loop;
//   WatchedFd socket;
//   Status s = loop.Watch(
//       std::move(fd), {.readable = [&] { Read(socket.fd()); }}, &socket);
//   while (s.ok() && !done) s = loop.RunOnce(deadline);
//   Fd mine = socket.Release();  // no longer watched, still open
//
// A round is Wait() and Dispatch(). Wait() sleeps until something is ready or
// the deadline has passed. Dispatch() then calls, in this order:
//   1. what was posted, in the order of Post();
//   2. timers that are due, the earliest first;
//   3. readable and writable callbacks: Turn::kFirst, then kNormal, then kLast;
//      within a turn in the order in which the kernel reported them.
// Callbacks for events that become ready during Dispatch() are called in the
// next round. An event of this round is dropped if its registration or timer is
// destroyed during the round.
//
// A deadline costs nothing, but setting a timer costs a system call: use a
// deadline for a time that changes in each round.
//
// Events are level-triggered: a callback that leaves data unread is called
// again in the next round. readable() is also called at end of file. On an
// error of the descriptor each wanted callback is called: it learns the error
// by reading or writing. epoll cannot watch regular files.
//
// Processes and signals are descriptors as well: that of process_end.h is
// readable when the process has ended, a signalfd when a signal is pending.
//
// Thread contract: one thread makes all calls, except Post(), which any thread
// may call until the loop is destroyed. Callbacks run on the loop's thread,
// only within Dispatch(), and may call anything here but Wait(), Dispatch(),
// RunOnce() and the loop's destructor. After fork() a child may only exec.
//
// Invariants:
// * a descriptor is watched exactly as long as a WatchedFd holds it;
// * once Reset(), Release(), Cancel() or a destructor has returned, that
//   registration's callbacks are not called again, not even for an event of the
//   same round. A callback may destroy its own registration: the callback
//   object lives until the callback returns;
// * the loop must outlive its registrations and timers;
// * the loop does not change a descriptor's flags (O_NONBLOCK).
//
// Callbacks must not block, nor ask the name service. One that takes longer
// than kBlockedLimit is reported to OnBlocked(); in debug builds, by default,
// on stderr.
//
// Built on standalone Asio, which only event_loop.cc includes. An event costs
// about 1 us of CPU time more than with plain epoll (a wake-up and an answer
// through eventfds: 3.5 instead of 2.6 us).
#ifndef MAYPOLE_COMMON_SYSTEM_EVENT_LOOP_H_
#define MAYPOLE_COMMON_SYSTEM_EVENT_LOOP_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/status.h"
#include "common/system/fd.h"

namespace maypole {

class EventLoop;

inline constexpr std::chrono::milliseconds kBlockedLimit{50};

// When in a round the callbacks of a descriptor are called.
enum class Turn { kFirst = 0, kNormal = 1, kLast = 2 };

struct WatchOptions {
  std::function<void()> readable;  // empty: not watched for reading
  std::function<void()> writable;  // empty: not watched for writing
  // Usually writability is wanted only while output is waiting: see
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
  // For reading and writing; the caller must not close it. -1 if empty.
  int fd() const;

  // Enables or disables the callback. Disabling also drops a pending event.
  // Enabling a callback that was not given has no effect.
  void WantRead(bool wanted);
  void WantWrite(bool wanted);

  // Stops watching the descriptor and returns it, still open.
  Fd Release();
  // Stops watching the descriptor and closes it.
  void Reset() { Release().Reset(); }

 private:
  friend class EventLoop;
  struct State;
  std::shared_ptr<State> state_;
};

// Calls its callback once, at or after a time, which can be set repeatedly.
class LoopTimer {
 public:
  using Time = std::chrono::steady_clock::time_point;

  LoopTimer(EventLoop* loop, std::function<void()> callback);
  ~LoopTimer();  // as Cancel()
  LoopTimer(const LoopTimer&) = delete;
  LoopTimer& operator=(const LoopTimer&) = delete;

  // Replaces an earlier time. If the time has passed already, the callback is
  // called in the next round.
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
  ~EventLoop();  // drops posted functions that have not been called
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Starts watching. *out owns the descriptor from now on; what *out held
  // before is closed. On an error (the process or the system is out of
  // descriptors or epoll watches) the descriptor is closed and *out is empty.
  Status Watch(Fd fd, WatchOptions options, WatchedFd* out);

  // May be called by any thread. Wakes the loop, which calls `function` in its
  // next round.
  void Post(std::function<void()> function);

  // Called in Dispatch() after a callback has blocked the loop for longer than
  // kBlockedLimit. callback: its type; a lambda's type names the function that
  // made it.
  using Blocked = std::function<void(const std::string& callback,
                                     std::chrono::milliseconds time)>;
  void OnBlocked(Blocked blocked);

  // Returns when there is something to dispatch, or at the deadline. Returns an
  // error if the loop could not be made because no descriptors were left.
  Status Wait(std::optional<Time> deadline);
  void Dispatch();
  // One round: Wait() and Dispatch().
  Status RunOnce(std::optional<Time> deadline = std::nullopt);

 private:
  friend class WatchedFd;
  friend class LoopTimer;
  struct Impl;
  std::unique_ptr<Impl> impl_;  // null if the loop could not be made
  Status failure_;
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_SYSTEM_EVENT_LOOP_H_
