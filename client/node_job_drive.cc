// Who drives a NodeJob's mover: waiters and the progress thread; how they
// sleep, and what they read from the executor.
#include <sched.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <utility>

#include "client/node_job.h"
#include "common/kill_point.h"

namespace maypole {
namespace {

using Clock = std::chrono::steady_clock;

// Bound of one sleep while nothing is outstanding.
constexpr int kIdleSleepMs = 1000;
// A waiter yields from then on, though there seem to be cores for all.
constexpr auto kPoliteAfter = std::chrono::microseconds(20);
// How often a thread that need not sleep tells where it is.
constexpr uint32_t kTellEvery = 64;

// Of this file alone: of a thread_local that others see, libmaypole would keep
// the name.
thread_local bool this_thread_waits = false;

}  // namespace

// Waiters sleep, but for this thread, if it is one.
void NodeJob::Ended() {
  if (waiters_.load() > (this_thread_waits ? 1u : 0u)) WakeThreads();
}

bool NodeJob::Drive(bool look_at_socket) {
  if (closed_) return false;
  bool moved = core_.Step();
  if (++drives_ % kTellEvery == 0) core_.TellWhereItIs();
  if (core_.expects_messages() || look_at_socket) moved |= ReadReplies();
  return moved;
}

bool NodeJob::ReadReplies() {
  ResendMessages();
  bool moved = false;
  std::vector<char> message;
  for (;;) {
    const Status s = session_->NextMessage(&message);
    if (!s.ok()) {
      LoseExecutor(s.message());
      return moved;
    }
    if (message.empty()) return moved;
    core_.OnMessage(message);
    moved = true;
  }
}

// The executor's death ends the epoch; whoever sees it first says so to all.
void NodeJob::LoseExecutor(const std::string& how) {
  if (!board_->aborted()) {
    board_->Abort(Code::kAborted, "the executor of this node (agent " +
                                      options_.agent + ") died: " + how +
                                      "; see the agent's log");
  }
  core_.LoseExecutor();
}

// The only place where the time of a wait is taken: who does not sleep pays
// nothing for it.
FutexResult NodeJob::SleepCounted(const Operation& operation, uint32_t seen,
                                  int timeout_ms, Sleeps* sleeps) {
  uint64_t late = 0;
  const WaitFor what = core_.WaitsFor(operation, &late);
  const auto begin = Clock::now();
  const FutexResult r = FutexWait(me_.wake, seen, timeout_ms);
  const auto slept = std::chrono::duration_cast<std::chrono::nanoseconds>(
      Clock::now() - begin);
  sleeps->ms += static_cast<int>(slept.count() / 1'000'000) + 1;
  // Of several that were late, those who still are have been so all the time.
  uint64_t still = 0;
  if (std::popcount(late) > 1) core_.WaitsFor(operation, &still);
  if ((late & still) != 0) late &= still;
  core_.CountSleep(what, late, static_cast<uint64_t>(slept.count()),
                   !operation.slept_for.exchange(true));
  return r;
}

bool NodeJob::SleepOnBoard(const Operation& operation, int timeout_ms,
                           Sleeps* sleeps) {
  const uint32_t seen = me_.wake.load(std::memory_order_acquire);
  me_.sleeping.store(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  MAYPOLE_KILL_POINT("sleep.flag");
  {
    std::lock_guard lock(drive_mutex_);
    core_.TellWhereItIs();
    if (Drive(false)) return true;
  }
  // Another thread may have ended it before `seen` was read.
  if (operation.done.load(std::memory_order_acquire)) return true;
  MAYPOLE_KILL_POINT("sleep.looked");
  const FutexResult r = SleepCounted(operation, seen, timeout_ms, sleeps);
  MAYPOLE_KILL_POINT("sleep.over");
  sleeps->interrupted = r == FutexResult::kInterrupted;
  if (r != FutexResult::kTimeout) return true;
  std::lock_guard lock(drive_mutex_);
  return Drive(true);
}

// The last waiter leaves others' work to the progress thread, and other waiters
// to whoever wakes the rank.
void NodeJob::StopAttending() {
  const bool others_wait = waiters_.fetch_sub(1) > 1;
  if (!others_wait && core_.outstanding() == 0) return;
  me_.sleeping.store(1, std::memory_order_seq_cst);
  MAYPOLE_KILL_POINT("attend.flag");
  std::atomic_thread_fence(std::memory_order_seq_cst);
  bool more;
  {
    std::lock_guard lock(drive_mutex_);
    more = Drive(false);
  }
  if (more) WakeThreads();
}

void NodeJob::Poke(const Operation& operation) {
  NoteUser();
  if (core_.outstanding() == 0) return;
  core_.Want(operation);
  std::unique_lock lock(drive_mutex_, std::try_to_lock);
  if (lock.owns_lock()) Drive(false);
}

Status NodeJob::Await(const Operation& operation, int timeout_ms) {
  if (operation.done.load(std::memory_order_acquire)) return Status();
  NoteUser();
  const auto start = Clock::now();
  const auto left = [&]() -> int64_t {
    if (timeout_ms < 0) return kSleepMs;
    return timeout_ms - std::chrono::duration_cast<std::chrono::milliseconds>(
                            Clock::now() - start)
                            .count();
  };
  core_.Want(operation);
  waiters_.fetch_add(1);
  this_thread_waits = true;
  me_.sleeping.store(0, std::memory_order_relaxed);
  MAYPOLE_KILL_POINT("wait.begun");
  auto idle_since = start;
  bool blocked = false;
  Sleeps sleeps;
  Status result;
  while (!operation.done.load(std::memory_order_acquire)) {
    bool moved;
    {
      std::lock_guard lock(drive_mutex_);
      moved = Drive(false);
    }
    if (moved) {
      if (std::exchange(blocked, false)) core_.ClearBlocked();
      idle_since = Clock::now();
      continue;
    }
    if (operation.done.load(std::memory_order_acquire)) break;
    const auto idle = Clock::now() - idle_since;
    if (idle < spin_) {
      // Two ranks on one core, for a third process has the other one: who
      // waited without yielding would wait for itself.
      if (yields_ || idle > kPoliteAfter) {
        sched_yield();
      }
      continue;
    }
    if (left() <= 0) {
      result = Status(Code::kDeadlineExceeded,
                      operation.Title() + " is still pending");
      break;
    }
    if (SleepOnBoard(
            operation,
            static_cast<int>(std::min<int64_t>(sleeps.NextMs(), left())),
            &sleeps)) {
      sleeps.ms = 0;
      if (std::exchange(blocked, false)) core_.ClearBlocked();
      idle_since = Clock::now();
    } else if (timeout_ms < 0 && !blocked && !sleeps.interrupted &&
               sleeps.ms >= kSleepMs) {
      blocked = IsCertainlyBlocked(operation);
    }
    me_.sleeping.store(0, std::memory_order_relaxed);
    if (sleeps.interrupted) {
      result = Status(Code::kCancelled, "a signal interrupted the wait");
      break;
    }
  }
  if (blocked) core_.ClearBlocked();
  StopAttending();
  this_thread_waits = false;
  return result;
}

void NodeJob::NoteUser() {
  static thread_local char self;
  const void* user = user_.load(std::memory_order_relaxed);
  if (user == &self) return;
  if (user != nullptr || !user_.compare_exchange_strong(user, &self)) {
    // Who waits has said that it is blocked for certain: no more.
    if (!several_users_.exchange(true)) WakeThreads();
  }
}

// Nothing moves on this rank until another one does something: no other thread
// of it is known to use Maypole.
bool NodeJob::IsCertainlyBlocked(const Operation& op) {
  return options_.deadlock_check && !several_users_.load() &&
         core_.SetBlocked(op);
}

void NodeJob::ProgressLoop() {
  while (!stop_.load()) {
    bool moved = false;
    if (waiters_.load() == 0 && core_.outstanding() > 0) {
      std::lock_guard drive(drive_mutex_);
      moved = Drive(false);
    }
    if (!moved) Park();
  }
}

// Waiters attend themselves, and leave the sleeping flag as it must be.
void NodeJob::Park() {
  const uint32_t seen = me_.wake.load(std::memory_order_acquire);
  if (stop_.load()) return;
  if (waiters_.load() == 0 && core_.outstanding() > 0) {
    me_.sleeping.store(1, std::memory_order_seq_cst);
    MAYPOLE_KILL_POINT("park.flag");
    std::atomic_thread_fence(std::memory_order_seq_cst);
    std::lock_guard drive(drive_mutex_);
    core_.TellWhereItIs();
    if (Drive(false)) return;
  }
  const int timeout_ms = core_.outstanding() > 0 ? kSleepMs : kIdleSleepMs;
  if (FutexWait(me_.wake, seen, timeout_ms) != FutexResult::kTimeout) return;
  if (waiters_.load() > 0) return;
  // Also with nothing outstanding: the executor may have a line for the user.
  std::lock_guard drive(drive_mutex_);
  Drive(true);
}

}  // namespace maypole
