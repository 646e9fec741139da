// The part of BoardCommunicator that drives the progress engine: how threads in
// Await() and the progress thread drive it, sleep, and read the executor's
// messages.
#include <sched.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <utility>

#include "client/session/board_communicator.h"
#include "client/session/stall_notice.h"
#include "client/session/stall_text.h"
#include "common/board/kill_point.h"

namespace maypole {
namespace {

using Clock = std::chrono::steady_clock;

// The longest sleep while nothing is outstanding.
constexpr int kIdleSleepMs = 1000;
// With checksums, whose records must not wait longer.
constexpr int kIdleSleepWithChecksumsMs = 100;
// A thread that does not sleep publishes its position once in so many steps.
constexpr uint32_t kPublishEvery = 64;
// A waiter lets another thread drive for at most this long before it checks its
// own deadline.
constexpr auto kTurn = std::chrono::milliseconds(50);
// How long a rank that leaves tries to send the rest of its timeline.
constexpr auto kTimelineRest = std::chrono::milliseconds(500);
// See kWaitInterruptible.
constexpr auto kLongestMoving = std::chrono::milliseconds(100);

// Returns `ms`, or the time until the deadline if that is shorter; rounded up,
// so that no thread spins in the last millisecond.
int AtMostUntil(Clock::time_point deadline, Clock::time_point now, int ms) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - now).count();
  return static_cast<int>(std::min<int64_t>(ms, left));
}

// Locks the mutex within the time, or returns false. ThreadSanitizer of gcc 12
// does not know pthread_mutex_clocklock(), by which try_lock_for() waits, and
// would report races.
bool LockWithin(std::chrono::milliseconds time,
                std::unique_lock<std::timed_mutex>* lock) {
#ifdef __SANITIZE_THREAD__
  const auto deadline = Clock::now() + time;
  while (!lock->try_lock()) {
    if (Clock::now() > deadline) return false;
    sched_yield();
  }
  return true;
#else
  return lock->try_lock_for(time);
#endif
}

// Internal to this file, because libmaypole would export the name of a
// thread_local with external linkage.
thread_local bool this_thread_waits = false;

// While the executor's loop turns, the coordinator reports stragglers, with
// what the executor tells it. So this rank reports only what neither of them
// can know.
void TellOfStall(const Board& board, const RankCore& core,
                 const Operation& operation, const RankOptions& options,
                 const StallNotice& notice) {
  uint64_t late = 0;
  const WaitFor what = core.WaitsFor(operation, &late);
  const bool told = operation.control == Control::kNone &&
                    (what == WaitFor::kRanks || what == WaitFor::kNodes);
  const bool stuck = !notice.executor_turned();
  if (told && !stuck) return;
  TellUser("maypole: rank " + std::to_string(options.rank) + " has waited " +
           std::to_string(notice.Stood(Clock::now()).count()) + " s for " +
           operation.Title() + ": " + StallText(board, core, operation) +
           (stuck ? "; the executor of this node does not move (agent " +
                        options.agent + "), see the agent's log"
                  : ""));
}

}  // namespace

// All other threads in Await() may sleep, so they must be woken.
void BoardCommunicator::Ended() {
  if (waiters_.load() > (this_thread_waits ? 1u : 0u)) WakeThreads();
}

bool BoardCommunicator::Drive(bool look_at_socket) {
  if (closed_) return false;
  bool moved = core_.Step();
  // Not before: until then peers must take this rank for one that may write.
  if (input_failed_.load(std::memory_order_relaxed) &&
      core_.outstanding() == 0 && input_failed_.exchange(false)) {
    SayGoodbye(/*pending=*/1, options_.elastic, InputFailure());
  }
  if (++drives_ % kPublishEvery == 0) core_.PublishPosition();
  if (core_.expects_messages() || core_.recalled() || look_at_socket ||
      expected_messages_.load(std::memory_order_relaxed) > 0 ||
      timeline_.waits()) {
    moved |= ReadReplies();
  }
  if (board_->aborted()) TellEpochOver();
  return moved;
}

void BoardCommunicator::TellEpochOver() {
  if (epoch_over_told_.load(std::memory_order_relaxed)) return;
  std::lock_guard lock(gpu_memory_mutex_);
  if (on_epoch_over_ == nullptr) return;
  epoch_over_told_.store(true);
  on_epoch_over_();
}

// A mutex is not fair: the thread that moves data could take it again and
// again, and this thread would wait far beyond its deadline.
bool BoardCommunicator::DriveInTurn(Look look) {
  std::unique_lock lock(drive_mutex_, std::try_to_lock);
  if (!lock.owns_lock() && !LockWithin(kTurn, &lock)) return true;
  if (look == Look::kPublish) core_.PublishPosition();
  return Drive(look == Look::kAtSocket);
}

bool BoardCommunicator::ReadReplies() {
  static_cast<void>(ResendMessages());  // those that are left come later
  bool moved = false;
  std::vector<char> message;
  std::vector<Fd> descriptors;
  for (;;) {
    const Status s = session_->NextMessage(&message, &descriptors);
    if (!s.ok()) {
      LoseExecutor(s.message());
      return moved;
    }
    if (message.empty()) return moved;
    HandOut(message, std::move(descriptors));
    moved = true;
  }
}

void BoardCommunicator::HandOut(const std::vector<char>& message,
                                std::vector<Fd> descriptors) {
  session::GpuMemoryReply reply;
  session::ConnectGpu connect;
  session::TimelineReply timeline;
  if (session::Parse(message.data(), message.size(), &timeline).ok()) {
    return timeline_.OnReply(timeline);
  }
  if (session::Parse(message.data(), message.size(), &connect).ok()) {
    std::lock_guard lock(gpu_memory_mutex_);
    if (on_connect_gpu_ != nullptr) on_connect_gpu_(connect);
    return;
  }
  session::StateReply state;
  if (session::Parse(message.data(), message.size(), &state).ok()) {
    state_calls_.OnReply(state, std::move(descriptors));
    return;
  }
  if (!session::Parse(message.data(), message.size(), &reply).ok()) {
    return core_.OnMessage(message);
  }
  if (expected_messages_.load() == 0) return;  // the executor was not asked
  expected_messages_.fetch_sub(1);
  std::lock_guard lock(gpu_memory_mutex_);
  if (on_gpu_memory_ != nullptr) on_gpu_memory_(reply);
}

// The executor's death ends the epoch. The first rank that notices it aborts
// the board for all.
void BoardCommunicator::LoseExecutor(const std::string& how) {
  if (!board_->aborted()) {
    board_->Abort(Code::kAborted, "the executor of this node (agent " +
                                      options_.agent + ") died: " + how +
                                      "; see the agent's log");
  }
  core_.LoseExecutor();
  state_calls_.End(
      Status(Code::kUnavailable, "the executor of this node (agent " +
                                     options_.agent + ") has gone: " + how));
}

// The only place that measures the time of a wait, so that a thread that does
// not sleep has no cost.
FutexResult BoardCommunicator::SleepCounted(const Operation& operation,
                                            uint32_t seen, int timeout_ms,
                                            Backoff* backoff) {
  uint64_t late = 0;
  const WaitFor what = core_.WaitsFor(operation, &late);
  const auto begin = Clock::now();
  core_hints_.Withdraw();
  const FutexResult r = FutexWait(me_.wake, seen, timeout_ms);
  core_hints_.Publish(sched_getcpu());
  const auto slept = std::chrono::duration_cast<std::chrono::nanoseconds>(
      Clock::now() - begin);
  backoff->ms += static_cast<int>(slept.count() / 1'000'000) + 1;
  // If several ranks were late, only those that still are have been late for
  // the whole sleep.
  uint64_t still = 0;
  if (std::popcount(late) > 1) core_.WaitsFor(operation, &still);
  if ((late & still) != 0) late &= still;
  core_.CountSleep(what, late, static_cast<uint64_t>(slept.count()),
                   !operation.slept_for.exchange(true));
  return r;
}

bool BoardCommunicator::SleepOnBoard(const Operation& operation, int timeout_ms,
                                     Backoff* backoff) {
  const uint32_t seen = me_.wake.load(std::memory_order_acquire);
  me_.sleeping.store(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  MAYPOLE_KILL_POINT("sleep.flag");
  if (DriveInTurn(Look::kPublish)) return true;
  // Another thread may have ended it before `seen` was read.
  if (operation.done.load(std::memory_order_acquire)) return true;
  MAYPOLE_KILL_POINT("sleep.looked");
  const FutexResult r = SleepCounted(operation, seen, timeout_ms, backoff);
  MAYPOLE_KILL_POINT("sleep.over");
  backoff->interrupted = r == FutexResult::kInterrupted;
  if (r != FutexResult::kTimeout) return true;
  return DriveInTurn(Look::kAtSocket);
}

// The last waiter leaves the remaining work to the progress thread. If there
// are other waiters, they are woken by other ranks.
void BoardCommunicator::StopAttending() {
  const bool others_wait = waiters_.fetch_sub(1) > 1;
  if (!others_wait && !HasWork()) return;
  me_.sleeping.store(1, std::memory_order_seq_cst);
  MAYPOLE_KILL_POINT("attend.flag");
  std::atomic_thread_fence(std::memory_order_seq_cst);
  // If another thread has been driving all the time, the woken threads check
  // for themselves.
  if (DriveInTurn(Look::kAtBoard)) WakeThreads();
}

// Looks at the other ranks' cores only if that can change the answer.
Pause BoardCommunicator::NextPause(const Operation& operation,
                                   std::chrono::nanoseconds idle) {
  const uint32_t core = core_hints_.Publish(sched_getcpu());
  const Pause alone = waiting_.Next(idle, /*peer_on_my_core=*/false);
  if (alone != Pause::kSpin || operation.set == nullptr) return alone;
  return waiting_.Next(idle, core_hints_.PeerOn(core, operation.set->locals));
}

void BoardCommunicator::Progress(const Operation& operation) {
  NoteUser();
  if (core_.outstanding() == 0) return;
  core_.Want(operation);
  std::unique_lock lock(drive_mutex_, std::try_to_lock);
  if (lock.owns_lock()) Drive(false);
}

Status BoardCommunicator::Await(const Operation& operation, int timeout_ms) {
  if (operation.done.load(std::memory_order_acquire)) return Status();
  NoteUser();
  const auto start = Clock::now();
  const int limit = LimitOfWait(timeout_ms);
  const auto deadline = limit < 0 ? Clock::time_point::max()
                                  : start + std::chrono::milliseconds(limit);
  const auto moving_until = timeout_ms <= kWaitInterruptible
                                ? start + kLongestMoving
                                : Clock::time_point::max();
  core_.Want(operation);
  core_hints_.Publish(sched_getcpu());
  waiters_.fetch_add(1);
  this_thread_waits = true;
  me_.sleeping.store(0, std::memory_order_relaxed);
  MAYPOLE_KILL_POINT("wait.begun");
  auto idle_since = start;
  bool blocked = false;
  Backoff backoff;
  StallNotice notice;
  Status result;
  while (!operation.done.load(std::memory_order_acquire)) {
    const bool moved = DriveInTurn(Look::kAtBoard);
    const auto now = Clock::now();
    if (moved) {
      if (std::exchange(blocked, false)) core_.ClearBlocked();
      idle_since = now;
      notice.Moved();
    }
    if (operation.done.load(std::memory_order_acquire)) break;
    if (now >= deadline) {
      result = Status(Code::kDeadlineExceeded,
                      operation.Title() + " is still pending: " +
                          StallText(*board_, core_, operation));
      break;
    }
    if (moved && now >= moving_until) {
      result = Status(Code::kCancelled, "the wait returns while data moves");
      break;
    }
    if (moved) continue;
    const Pause pause = NextPause(operation, now - idle_since);
    if (pause == Pause::kYield) sched_yield();
    if (pause != Pause::kSleep) continue;
    if (SleepOnBoard(operation, AtMostUntil(deadline, now, backoff.NextMs()),
                     &backoff)) {
      backoff.ms = 0;
      if (std::exchange(blocked, false)) core_.ClearBlocked();
      idle_since = Clock::now();
    } else {
      if (timeout_ms < 0 && !blocked && !backoff.interrupted &&
          backoff.ms >= kMaxBackoffMs) {
        blocked = IsCertainlyBlocked(operation);
      }
      if (notice.Due(Clock::now(), board_->header().executor_sleeping.load(
                                       std::memory_order_relaxed))) {
        TellOfStall(*board_, core_, operation, options_, notice);
      }
    }
    me_.sleeping.store(0, std::memory_order_relaxed);
    if (backoff.interrupted) {
      result = Status(Code::kCancelled, "a signal interrupted the wait");
      break;
    }
  }
  if (blocked) core_.ClearBlocked();
  StopAttending();
  this_thread_waits = false;
  return result;
}

void BoardCommunicator::NoteUser() {
  static thread_local char self;
  const void* user = user_.load(std::memory_order_relaxed);
  if (user == &self) return;
  // What a callback starts is foreseen by IsCertainlyBlocked().
  if (callbacks_ != nullptr &&
      callbacks_->thread.load() == std::this_thread::get_id()) {
    return;
  }
  if (user != nullptr || !user_.compare_exchange_strong(user, &self)) {
    // A waiter may have published that it is certainly blocked, which is no
    // longer certain: wake it.
    if (!several_users_.exchange(true)) WakeThreads();
  }
}

// True if nothing can move on this rank until another rank does something,
// because no other thread of this rank is known to use Maypole, and no callback
// runs that may do so.
bool BoardCommunicator::IsCertainlyBlocked(const Operation& op) {
  return options_.deadlock_check && !several_users_.load() &&
         (callbacks_ == nullptr || callbacks_->unfinished.load() == 0) &&
         core_.SetBlocked(op);
}

void BoardCommunicator::ProgressLoop() {
  while (!stop_.load()) {
    bool moved = false;
    if (waiters_.load() == 0 && HasWork()) {
      std::lock_guard drive(drive_mutex_);
      moved = Drive(false);
    }
    if (!moved) Park();
  }
}

// The hot path: called when an operation ends, under the core's lock.
void BoardCommunicator::Record(const Operation& op) {
  timeline_outbox_.Add(board_->header().timeline.load(),
                       RecordOf(op, options_.rank));
}

// Returns after how many milliseconds the progress thread should call it again.
int BoardCommunicator::SendTimeline() {
  return timeline_outbox_.Step(board_->header().timeline.load(),
                               core_.unrecorded(), Now() / 1000000,
                               [this](const void* message, size_t bytes) {
                                 std::lock_guard lock(send_mutex_);
                                 return session_->Send(message, bytes);
                               });
}

// This rank leaves: no operation is pending any more, and the progress thread
// has ended.
void BoardCommunicator::SendTimelineRest() {
  const auto deadline = Clock::now() + kTimelineRest;
  const auto send = [this](const void* message, size_t bytes) {
    return session_->Send(message, bytes);
  };
  while (timeline_outbox_.Step(board_->header().timeline.load(), 0,
                               Now() / 1000000, send,
                               /*leaving=*/true) != TimelineOutbox::kNever &&
         Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Threads in Await() drive themselves, and set the sleeping flag when they
// stop.
void BoardCommunicator::Park() {
  const uint32_t seen = me_.wake.load(std::memory_order_acquire);
  if (stop_.load()) return;
  if (waiters_.load() == 0 && HasWork()) {
    me_.sleeping.store(1, std::memory_order_seq_cst);
    MAYPOLE_KILL_POINT("park.flag");
    std::atomic_thread_fence(std::memory_order_seq_cst);
    std::lock_guard drive(drive_mutex_);
    core_.PublishPosition();
    if (Drive(false)) return;
  }
  const int idle_ms =
      session_->checksums() ? kIdleSleepWithChecksumsMs : kIdleSleepMs;
  const int timeout_ms =
      std::min(HasWork() ? kMaxBackoffMs : idle_ms, SendTimeline());
  if (FutexWait(me_.wake, seen, timeout_ms) != FutexResult::kTimeout) return;
  if (waiters_.load() > 0) return;
  // Even if nothing is outstanding, the executor may have sent a line for the
  // user.
  std::lock_guard drive(drive_mutex_);
  Drive(true);
}

}  // namespace maypole
