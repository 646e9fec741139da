#include "client/session/wait_loop.h"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <string>

#include "client/session/stall_notice.h"
#include "client/session/stall_text.h"
#include "common/board/kill_point.h"
#include "common/system/resource_limits.h"

namespace maypole {
namespace {

using Clock = std::chrono::steady_clock;

// See kWaitInterruptible.
constexpr auto kLongestMoving = std::chrono::milliseconds(100);

// Returns `ms`, or the time until the deadline if that is shorter; rounded up,
// so that no thread spins in the last millisecond.
int AtMostUntil(Clock::time_point deadline, Clock::time_point now, int ms) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - now).count();
  return static_cast<int>(std::min<int64_t>(ms, left));
}

// Counts a thread as a user of a communicator until the thread ends, or uses
// another communicator.
class UserMark {
 public:
  using Count = std::shared_ptr<std::atomic<uint32_t>>;

  ~UserMark() { Move(nullptr); }
  bool IsIn(const Count& count) const { return count_ == count; }
  void Move(Count count) {
    if (count != nullptr) count->fetch_add(1);
    if (count_ != nullptr) count_->fetch_sub(1);
    count_ = std::move(count);
  }

 private:
  Count count_;
};

// Internal to this file, because libmaypole would export the name of a
// thread_local with external linkage.
thread_local bool this_thread_waits = false;
thread_local UserMark this_thread_uses;

// While the executor's loop turns, the coordinator reports stragglers from the
// executor's reports. So this rank reports only what neither of them can know.
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

WaitLoop::WaitLoop(const RankOptions* options, const Board* board,
                   RankCore* core, Driver* driver)
    : options_(*options),
      board_(board),
      me_(board->rank(static_cast<uint32_t>(options->local_rank))),
      core_(core),
      driver_(driver),
      policy_(ChooseWaitPolicy(AffinityCores(), CpuQuota(ReadFilesUnder("/")),
                               board->config().local_size,
                               board->config().nodes)),
      core_hints_(board, static_cast<uint32_t>(options->local_rank)) {
  if (options_.spin_microseconds >= 0) {
    policy_.spin = std::chrono::microseconds(options_.spin_microseconds);
  }
}

bool WaitLoop::others_wait() const {
  return waiters_.load() > (this_thread_waits ? 1u : 0u);
}

Status WaitLoop::Await(const Operation& operation, int timeout_ms) {
  if (operation.done.load(std::memory_order_acquire)) return Status();
  NoteUser();
  const auto start = Clock::now();
  const int limit = LimitOfWait(timeout_ms);
  const auto deadline = limit < 0 ? Clock::time_point::max()
                                  : start + std::chrono::milliseconds(limit);
  const auto moving_until = timeout_ms <= kWaitInterruptible
                                ? start + kLongestMoving
                                : Clock::time_point::max();
  core_->Want(operation);
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
    const bool moved = driver_->DriveInTurn(Look::kAtBoard);
    const auto now = Clock::now();
    if (moved) {
      if (std::exchange(blocked, false)) core_->ClearBlocked();
      idle_since = now;
      notice.Moved();
    }
    if (operation.done.load(std::memory_order_acquire)) break;
    if (now >= deadline) {
      result = Status(Code::kDeadlineExceeded,
                      operation.Title() + " is still pending: " +
                          StallText(*board_, *core_, operation));
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
      if (std::exchange(blocked, false)) core_->ClearBlocked();
      idle_since = Clock::now();
    } else {
      if (timeout_ms < 0 && !blocked && !backoff.interrupted &&
          backoff.ms >= kMaxBackoffMs) {
        blocked = IsCertainlyBlocked(operation);
      }
      if (notice.Due(Clock::now(), board_->header().executor_sleeping.load(
                                       std::memory_order_relaxed))) {
        TellOfStall(*board_, *core_, operation, options_, notice);
      }
    }
    me_.sleeping.store(0, std::memory_order_relaxed);
    if (backoff.interrupted) {
      result = Status(Code::kCancelled, "a signal interrupted the wait");
      break;
    }
  }
  if (blocked) core_->ClearBlocked();
  StopAttending();
  this_thread_waits = false;
  return result;
}

// The only function that measures the time of a wait, so that a thread that
// does not sleep pays nothing.
FutexResult WaitLoop::SleepCounted(const Operation& operation, uint32_t seen,
                                   int timeout_ms, Backoff* backoff) {
  uint64_t late = 0;
  const WaitFor what = core_->WaitsFor(operation, &late);
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
  if (std::popcount(late) > 1) core_->WaitsFor(operation, &still);
  if ((late & still) != 0) late &= still;
  core_->CountSleep(what, late, static_cast<uint64_t>(slept.count()),
                    !operation.slept_for.exchange(true));
  return r;
}

bool WaitLoop::SleepOnBoard(const Operation& operation, int timeout_ms,
                            Backoff* backoff) {
  const uint32_t seen = me_.wake.load(std::memory_order_acquire);
  me_.sleeping.store(kWaitersSleep, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  MAYPOLE_KILL_POINT("sleep.flag");
  if (driver_->DriveInTurn(Look::kPublish)) return true;
  // Another thread may have ended the operation before `seen` was read.
  if (operation.done.load(std::memory_order_acquire)) return true;
  MAYPOLE_KILL_POINT("sleep.looked");
  const FutexResult r = SleepCounted(operation, seen, timeout_ms, backoff);
  MAYPOLE_KILL_POINT("sleep.over");
  backoff->interrupted = r == FutexResult::kInterrupted;
  if (r != FutexResult::kTimeout) return true;
  return driver_->DriveInTurn(Look::kAtSocket);
}

// The last waiter leaves the remaining work to the progress thread. If there
// are other waiters, they are woken by other ranks.
void WaitLoop::StopAttending() {
  const bool others_wait = waiters_.fetch_sub(1) > 1;
  if (!others_wait && !driver_->HasWork()) return;
  me_.sleeping.store(kRankSleeps, std::memory_order_seq_cst);
  MAYPOLE_KILL_POINT("attend.flag");
  std::atomic_thread_fence(std::memory_order_seq_cst);
  // If another thread has been driving all the time, the woken threads check
  // for themselves.
  if (driver_->DriveInTurn(Look::kAtBoard)) driver_->WakeThreads();
}

// Checks the other ranks' cores only if that can change the answer.
Pause WaitLoop::NextPause(const Operation& operation,
                          std::chrono::nanoseconds idle) {
  const uint32_t core = core_hints_.Publish(sched_getcpu());
  const Pause alone = policy_.Next(idle, /*peer_on_my_core=*/false);
  if (alone != Pause::kSpin || operation.set == nullptr) return alone;
  return policy_.Next(idle, core_hints_.PeerOn(core, operation.set->locals));
}

void WaitLoop::NoteUser() {
  if (this_thread_uses.IsIn(users_)) return;
  // IsCertainlyBlocked() accounts for what callbacks start.
  if (callbacks_ != nullptr &&
      callbacks_->thread.load() == std::this_thread::get_id()) {
    return;
  }
  this_thread_uses.Move(users_);
  // A waiter may have published that it is certainly blocked, which is no
  // longer certain: wake it.
  if (users_->load() > 1) driver_->WakeThreads();
}

// True if nothing can move on this rank until another rank does something,
// because no other living thread of this rank is known to use Maypole, and no
// callback runs that may do so.
bool WaitLoop::IsCertainlyBlocked(const Operation& op) {
  return options_.deadlock_check && users_->load() <= 1 &&
         (callbacks_ == nullptr || callbacks_->unfinished.load() == 0) &&
         core_->SetBlocked(op);
}

}  // namespace maypole
