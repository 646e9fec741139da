#include "worker/executor/loop_watchdog.h"

#include <array>
#include <utility>

#include "worker/executor/clock.h"

namespace maypole::worker {
namespace {

// Indexed as the alternatives of Action.
constexpr std::array kActions = {"reply to a client",
                                 "refuse a client",
                                 "close a client",
                                 "keep watching a process",
                                 "stop watching a process",
                                 "open the coordinator's link",
                                 "close the coordinator's link",
                                 "send to the coordinator",
                                 "send to other nodes",
                                 "take what was passed on",
                                 "finish small operations",
                                 "ask for copies",
                                 "prepare the network",
                                 "connect the network",
                                 "create the board",
                                 "allot a slot",
                                 "snapshot for idle slots",
                                 "ask a rank to give a name back",
                                 "free a slot",
                                 "ask for a slot",
                                 "issue a run",
                                 "open GPU memory",
                                 "close GPU memories",
                                 "make a communicator's id",
                                 "connect GPUs",
                                 "run on GPUs",
                                 "run on the host",
                                 "commit an operation",
                                 "fail an operation",
                                 "mark a rank as left",
                                 "mark a rank as gone",
                                 "abort the epoch",
                                 "announce a change of ranks",
                                 "release the epoch",
                                 "send statistics",
                                 "report that it is idle"};
static_assert(kActions.size() == std::variant_size_v<Action>);

}  // namespace

LoopWatchdog::LoopWatchdog(std::function<void(const Report&)> report,
                           std::chrono::milliseconds longest)
    : report_(std::move(report)),
      longest_(longest),
      thread_([this] { Main(); }) {}

LoopWatchdog::~LoopWatchdog() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void LoopWatchdog::Awake() {
  doing_.store(std::variant_npos, std::memory_order_relaxed);
  awake_since_ns_.store(NowNs(), std::memory_order_relaxed);
}

void LoopWatchdog::Main() {
  std::unique_lock lock(mutex_);
  int64_t turn = 0;                 // the start of the turn seen last
  auto told = longest_ - longest_;  // its duration at the last report
  while (!changed_.wait_for(lock, longest_ / 4, [this] { return stop_; })) {
    const int64_t since = awake_since_ns_.load(std::memory_order_relaxed);
    if (since != std::exchange(turn, since)) told = told.zero();
    if (since == 0) continue;
    const auto stands = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::nanoseconds(NowNs() - since));
    if (stands < told + longest_) continue;
    told = stands;
    const size_t doing = doing_.load(std::memory_order_relaxed);
    report_({stands, doing < kActions.size() ? kActions[doing] : "an event"});
  }
}

}  // namespace maypole::worker
