#include "worker/gpu/gpu_runner.h"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <iterator>
#include <mutex>
#include <utility>

#include "common/absl_status.h"
#include "common/system/thread.h"
#include "worker/gpu/gpu_work.h"

namespace maypole::worker {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

// How long the thread spins after something has happened. Then it naps: the
// longer nothing happens, the longer.
constexpr microseconds kSpin{100};
constexpr microseconds kShortestNap{20};
constexpr microseconds kLongestNap{200};
// When nobody waits for the GPU any more.
constexpr std::chrono::milliseconds kIdleNap{10};

template <typename... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <typename... F>
Overloaded(F...) -> Overloaded<F...>;

}  // namespace

// The callbacks, until the owner wants no more.
class GpuRunner::Gate {
 public:
  explicit Gate(Callbacks callbacks) : callbacks_(std::move(callbacks)) {}

  // Waits for a callback that has begun.
  void Shut() {
    std::lock_guard lock(mutex_);
    shut_ = true;
  }
  void Opened(GpuMemoryId id, absl::StatusOr<Opened> opened) {
    std::lock_guard lock(mutex_);
    if (!shut_) callbacks_.on_opened(id, std::move(opened));
  }
  void Reduced(const GpuReduction& reduction, absl::Status status) {
    std::lock_guard lock(mutex_);
    if (!shut_) callbacks_.on_reduced(reduction, std::move(status));
  }

 private:
  const Callbacks callbacks_;
  std::mutex mutex_;
  bool shut_ = false;
};

class GpuRunner::Thread {
 public:
  explicit Thread(std::shared_ptr<Gate> gate) : gate_(std::move(gate)) {}

  void Post(Command command);
  // True if the thread has ended, or ends within the time.
  bool Stop(std::chrono::milliseconds most);
  void Main();

 private:
  void Run(GpuWork& work);
  void WindDown(GpuWork& work);
  // False if the thread shall stop.
  bool TakeCommands(bool wait);
  void Execute(GpuWork& work);
  void Pause(Clock::time_point since);

  const std::shared_ptr<Gate> gate_;
  std::deque<Command> taken_;  // the thread's own

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Command> commands_;
  bool stop_ = false;
  bool patient_ = false;  // nobody waits for the end
  bool ended_ = false;
};

void GpuRunner::Thread::Post(Command command) {
  std::lock_guard lock(mutex_);
  commands_.push_back(std::move(command));
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
    GpuWork work({.on_opened =
                      [this](GpuMemoryId id, absl::StatusOr<Opened> opened) {
                        gate_->Opened(id, std::move(opened));
                      },
                  .on_reduced =
                      [this](const GpuReduction& r, absl::Status status) {
                        gate_->Reduced(r, std::move(status));
                      }});
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
    const size_t before = taken_.size();
    Execute(work);
    if (work.Poll() || taken_.size() != before) {
      active = Clock::now();
    } else if (!work.idle()) {
      Pause(active);
    }
  }
}

bool GpuRunner::Thread::TakeCommands(bool wait) {
  std::unique_lock lock(mutex_);
  if (wait) {
    changed_.wait(lock, [this] { return stop_ || !commands_.empty(); });
  }
  std::move(commands_.begin(), commands_.end(), std::back_inserter(taken_));
  commands_.clear();
  return !stop_;
}

void GpuRunner::Thread::Execute(GpuWork& work) {
  while (!taken_.empty() && !work.full()) {
    std::visit(Overloaded{
                   [&](OpenCommand& c) {
                     work.Open(c.id, c.request, std::move(c.descriptor));
                   },
                   [&](CloseCommand& c) { work.Close(c.local); },
                   [&](GpuReduction& r) { work.Reduce(r); },
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
  changed_.wait_until(lock, Clock::now() + nap,
                      [this] { return stop_ || !commands_.empty(); });
}

void GpuRunner::Thread::WindDown(GpuWork& work) {
  work.CloseAll();
  for (;;) {
    work.Poll();
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

GpuRunner::GpuRunner(Callbacks callbacks)
    : gate_(std::make_shared<Gate>(std::move(callbacks))),
      state_(std::make_shared<Thread>(gate_)) {}

GpuRunner::~GpuRunner() {
  gate_->Shut();
  if (!thread_.joinable()) return;
  if (state_->Stop(kMostWait)) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void GpuRunner::Post(Command command) {
  if (thread_.joinable()) state_->Post(std::move(command));
}

void GpuRunner::Open(GpuMemoryId id, const session::GpuMemoryRequest& request,
                     Fd memory) {
  if (!thread_.joinable()) {
    const Status s = StartThread([state = state_] { state->Main(); }, &thread_);
    if (!s.ok()) return gate_->Opened(id, ToAbsl(s));
  }
  Post(OpenCommand{id, request, std::move(memory)});
}

void GpuRunner::Close(uint32_t local) { Post(CloseCommand{local}); }

void GpuRunner::Reduce(GpuReduction reduction) {
  if (!thread_.joinable()) {
    return gate_->Reduced(
        reduction, absl::FailedPreconditionError("no GPU memory is open"));
  }
  Post(std::move(reduction));
}

}  // namespace maypole::worker
