#include "common/gpu/runner/gpu_runner.h"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <iterator>
#include <mutex>
#include <string>
#include <utility>

#include "common/gpu/runner/gpu_work.h"
#include "common/system/thread.h"

namespace maypole {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

// How long the thread spins after something has happened. Then it naps, longer
// and longer while nothing happens.
constexpr microseconds kSpin{300};
constexpr microseconds kShortestNap{20};
constexpr microseconds kLongestNap{200};
// The nap when nothing waits for the GPU any more.
constexpr std::chrono::milliseconds kIdleNap{10};

std::string StuckText(std::chrono::milliseconds time) {
  return "NCCL has not given its communicators back within " +
         std::to_string(time.count()) + " ms";
}

template <typename... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <typename... F>
Overloaded(F...) -> Overloaded<F...>;

}  // namespace

// The callbacks, until the owner shuts them.
class GpuRunner::Gate {
 public:
  explicit Gate(Callbacks callbacks) : callbacks_(std::move(callbacks)) {}

  // Stops all callbacks but on_abort_stuck. Waits for one that has begun.
  void Shut() {
    std::lock_guard lock(mutex_);
    shut_ = true;
  }
  void ShutAll() {
    std::lock_guard lock(mutex_);
    shut_ = stuck_ = true;
  }
  Callbacks PassThrough() {
    return {.on_opened =
                [this](GpuMemoryId id, StatusOr<Opened> opened) {
                  TellOpened(id, std::move(opened));
                },
            .on_ended =
                [this](const GpuRun& run, Status status) {
                  TellEnded(run, std::move(status));
                },
            .on_enqueued = [this](const GpuRun& run) { TellEnqueued(run); },
            .on_communicator_id =
                [this](uint32_t number, StatusOr<std::string> id) {
                  TellId(number, std::move(id));
                },
            .on_abort_stuck =
                [this](std::string text) { TellStuck(std::move(text)); }};
  }
  void TellOpened(GpuMemoryId id, StatusOr<Opened> opened) {
    std::lock_guard lock(mutex_);
    if (!shut_) callbacks_.on_opened(id, std::move(opened));
  }
  void TellEnded(const GpuRun& run, Status status) {
    std::lock_guard lock(mutex_);
    if (!shut_) callbacks_.on_ended(run, std::move(status));
  }
  void TellEnqueued(const GpuRun& run) {
    std::lock_guard lock(mutex_);
    if (!shut_ && callbacks_.on_enqueued) callbacks_.on_enqueued(run);
  }
  void TellId(uint32_t number, StatusOr<std::string> id) {
    std::lock_guard lock(mutex_);
    if (shut_ || !callbacks_.on_communicator_id) return;
    callbacks_.on_communicator_id(number, std::move(id));
  }
  // Has an effect only the first time.
  void TellStuck(std::string text) {
    std::lock_guard lock(mutex_);
    if (std::exchange(stuck_, true) || !callbacks_.on_abort_stuck) return;
    callbacks_.on_abort_stuck(std::move(text));
  }

 private:
  const Callbacks callbacks_;
  std::mutex mutex_;
  bool shut_ = false;
  bool stuck_ = false;
};

class GpuRunner::Thread {
 public:
  Thread(std::shared_ptr<Gate> gate, std::string nccl_library,
         NcclTimeouts timeouts)
      : gate_(std::move(gate)),
        nccl_library_(std::move(nccl_library)),
        timeouts_(timeouts) {}

  void Post(Command command);
  void Post(UrgentCommand command);
  // True if the thread has ended, or ends within the time.
  bool Stop(std::chrono::milliseconds most);
  void Main();
  // Reports if the communicators are not gone some time after Abort(), even if
  // the thread hangs in a driver call.
  void WatchAbort();

  bool has_communicators() const { return has_communicators_; }

 private:
  void Run(GpuWork& work);
  void WindDown(GpuWork& work);
  bool Poll(GpuWork& work);
  // False if the thread must stop.
  bool TakeCommands(bool wait);
  void ExecuteUrgent(GpuWork& work);
  void Execute(GpuWork& work);
  void Pause(Clock::time_point since);
  // NCCL's communicators are gone, and there will be no others.
  bool free_of_nccl() const { return ended_ || abort_done_; }
  bool woken() const { return stop_ || !commands_.empty() || !urgent_.empty(); }

  const std::shared_ptr<Gate> gate_;
  const std::string nccl_library_;
  const NcclTimeouts timeouts_;
  std::atomic<bool> has_communicators_ = false;
  // The thread's own.
  bool aborted_ = false;
  std::deque<Command> taken_;
  std::deque<UrgentCommand> taken_urgent_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Command> commands_;
  std::deque<UrgentCommand> urgent_;
  bool stop_ = false;
  bool patient_ = false;  // nothing waits for the end
  bool ended_ = false;
  bool abort_done_ = false;
};

void GpuRunner::Thread::Post(Command command) {
  std::lock_guard lock(mutex_);
  commands_.push_back(std::move(command));
  changed_.notify_all();
}

void GpuRunner::Thread::Post(UrgentCommand command) {
  std::lock_guard lock(mutex_);
  urgent_.push_back(std::move(command));
  changed_.notify_all();
}

bool GpuRunner::Thread::Stop(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  stop_ = true;
  changed_.notify_all();
  patient_ = !changed_.wait_until(lock, Clock::now() + most,
                                  [this] { return ended_; });
  return ended_;
}

void GpuRunner::Thread::Main() {
  prctl(PR_SET_NAME, "maypole-gpu");
  {
    GpuWork work(gate_->PassThrough(), nccl_library_, timeouts_);
    Run(work);
    taken_.clear();
    WindDown(work);
  }
  std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

void GpuRunner::Thread::Run(GpuWork& work) {
  Clock::time_point active = Clock::now();
  while (TakeCommands(/*wait=*/taken_.empty() && work.idle())) {
    const size_t before = taken_.size() + taken_urgent_.size();
    ExecuteUrgent(work);
    Execute(work);
    if (Poll(work) || taken_.size() != before) {
      active = Clock::now();
    } else if (!work.idle()) {
      Pause(active);
    }
  }
}

bool GpuRunner::Thread::Poll(GpuWork& work) {
  const bool changed = work.Poll();
  has_communicators_ = work.has_communicators();
  if (aborted_ && !has_communicators_) {
    std::lock_guard lock(mutex_);
    abort_done_ = true;
    changed_.notify_all();
  }
  return changed;
}

void GpuRunner::Thread::WatchAbort() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, Clock::now() + timeouts_.abort,
                        [this] { return free_of_nccl(); });
    if (free_of_nccl()) return;
  }
  if (!has_communicators_) return;
  gate_->TellStuck(StuckText(timeouts_.abort));
}

bool GpuRunner::Thread::TakeCommands(bool wait) {
  std::unique_lock lock(mutex_);
  if (wait) changed_.wait(lock, [this] { return woken(); });
  std::move(commands_.begin(), commands_.end(), std::back_inserter(taken_));
  commands_.clear();
  std::move(urgent_.begin(), urgent_.end(), std::back_inserter(taken_urgent_));
  urgent_.clear();
  return !stop_;
}

void GpuRunner::Thread::ExecuteUrgent(GpuWork& work) {
  for (; !taken_urgent_.empty(); taken_urgent_.pop_front()) {
    std::visit(Overloaded{
                   [&](MakeIdCommand& c) { work.MakeCommunicatorId(c.number); },
                   [&](ConnectCommand& c) {
                     work.Connect(std::move(c.communicator), c.id);
                   },
                   [&](AbortCommand&) {
                     work.Abort();
                     aborted_ = true;
                   },
               },
               taken_urgent_.front());
  }
}

void GpuRunner::Thread::Execute(GpuWork& work) {
  while (!taken_.empty() && !work.full()) {
    std::visit(Overloaded{
                   [&](OpenCommand& c) {
                     work.Open(c.id, c.request, std::move(c.descriptor));
                   },
                   [&](OpenOwnCommand& c) { work.OpenOwn(c.uuid); },
                   [&](CloseCommand& c) { work.Close(c.local); },
                   [&](GpuRun& run) { work.Run(std::move(run)); },
               },
               taken_.front());
    taken_.pop_front();
  }
}

void GpuRunner::Thread::Pause(Clock::time_point since) {
  const auto quiet =
      std::chrono::duration_cast<microseconds>(Clock::now() - since);
  if (quiet < kSpin) {
    sched_yield();
    return;
  }
  const microseconds nap =
      std::clamp((quiet - kSpin) / 2, kShortestNap, kLongestNap);
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, Clock::now() + nap, [this] { return woken(); });
}

void GpuRunner::Thread::WindDown(GpuWork& work) {
  work.Abort();
  work.CloseAll();
  for (;;) {
    Poll(work);
    if (work.idle()) return;
    bool patient = false;
    {
      std::lock_guard lock(mutex_);
      patient = patient_;
    }
    if (patient) {
      std::this_thread::sleep_for(kIdleNap);
    } else {
      std::this_thread::sleep_for(kLongestNap);
    }
  }
}

GpuRunner::GpuRunner(Callbacks callbacks, std::string nccl_library,
                     NcclTimeouts timeouts)
    : gate_(std::make_shared<Gate>(std::move(callbacks))),
      state_(
          std::make_shared<Thread>(gate_, std::move(nccl_library), timeouts)) {}

GpuRunner::~GpuRunner() {
  gate_->Shut();
  if (!thread_.joinable()) return;
  if (state_->Stop(kMostWait)) {
    thread_.join();
  } else {
    if (state_->has_communicators()) {
      gate_->TellStuck(StuckText(kMostWait));
    }
    thread_.detach();
  }
  gate_->ShutAll();
}

Status GpuRunner::Start() {
  if (thread_.joinable()) return Status();
  return StartThread([state = state_] { state->Main(); }, &thread_);
}

template <typename C>
void GpuRunner::Post(C command) {
  if (thread_.joinable()) state_->Post(std::move(command));
}

void GpuRunner::Open(GpuMemoryId id, const session::GpuMemoryRequest& request,
                     Fd memory) {
  if (const Status s = Start(); !s.ok()) return gate_->TellOpened(id, s);
  Post<Command>(OpenCommand{id, request, std::move(memory)});
}

void GpuRunner::OpenOwn(const uint8_t (&uuid)[16]) {
  if (const Status s = Start(); !s.ok()) {
    return gate_->TellOpened({}, s);
  }
  OpenOwnCommand command;
  std::copy(std::begin(uuid), std::end(uuid), command.uuid);
  Post<Command>(command);
}

void GpuRunner::Close(uint32_t local) { Post<Command>(CloseCommand{local}); }

void GpuRunner::MakeCommunicatorId(uint32_t number) {
  if (const Status s = Start(); !s.ok()) {
    return gate_->TellId(number, s);
  }
  Post<UrgentCommand>(MakeIdCommand{number});
}

void GpuRunner::Connect(GpuCommunicator communicator, std::string id) {
  Post<UrgentCommand>(ConnectCommand{std::move(communicator), std::move(id)});
}

void GpuRunner::Run(GpuRun run) {
  if (!thread_.joinable()) {
    return gate_->TellEnded(
        run, Status(Code::kFailedPrecondition, "no GPU memory is open"));
  }
  run.times.ordered = GpuRunNow();
  Post<Command>(std::move(run));
}

void GpuRunner::Abort() {
  if (!thread_.joinable() || std::exchange(aborted_, true)) return;
  Post<UrgentCommand>(AbortCommand{});
  std::thread watch;
  // Without it, only a hanging thread goes unnoticed.
  if (StartThread([state = state_] { state->WatchAbort(); }, &watch).ok()) {
    watch.detach();
  }
}

}  // namespace maypole
