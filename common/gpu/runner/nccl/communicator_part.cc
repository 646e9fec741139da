#include "common/gpu/runner/nccl/communicator_part.h"

#include <sys/prctl.h>

#include <thread>
#include <utility>

#include "common/system/thread.h"

namespace maypole {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPollInterval{1};
// NCCL makes the handle in the call that begins to connect, or soon afterwards.
constexpr milliseconds kLatestHandle{200};

Status Stopped() { return Status(Code::kCancelled, "the epoch is over"); }

}  // namespace

CommunicatorPart::CommunicatorPart(GpuCommunicator communicator,
                                   std::vector<const cuda::Gpu*> gpus,
                                   const nccl::ncclUniqueId& id,
                                   std::string library, milliseconds timeout)
    : communicator_(std::move(communicator)),
      gpus_(std::move(gpus)),
      id_(id),
      library_(std::move(library)),
      timeout_(timeout) {}

std::shared_ptr<CommunicatorPart> CommunicatorPart::Make(
    GpuCommunicator communicator, std::vector<const cuda::Gpu*> gpus,
    const nccl::ncclUniqueId& id, std::string library, milliseconds timeout) {
  return std::shared_ptr<CommunicatorPart>(
      new CommunicatorPart(std::move(communicator), std::move(gpus), id,
                           std::move(library), timeout));
}

void CommunicatorPart::Connect() {
  {
    std::lock_guard lock(mutex_);
    if (state_ != State::kNew) return;
    state_ = State::kConnecting;
  }
  std::thread thread;
  const Status s =
      StartThread([part = shared_from_this()] { part->Main(); }, &thread);
  if (s.ok()) {
    thread.detach();
  } else {
    End(s);
  }
}

void CommunicatorPart::Main() {
  prctl(PR_SET_NAME, "maypole-connect");
  Status s = Begin();
  if (s.ok()) s = WaitUntilReady();
  const bool ready = s.ok();
  End(std::move(s));
  if (ready || !begun_) return;
  // The group may not have ended.
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return aborted_; });
}

Status CommunicatorPart::Begin() {
  if (const Status s = nccl::OpenNccl(library_, &nccl_); !s.ok()) return s;
  for (size_t i = 0; i < gpus_.size(); ++i) {
    communicators_.push_back(std::make_unique<NcclCommunicator>(
        *nccl_, *gpus_[i], static_cast<int>(communicator_.first + i)));
  }
  // See CollectiveRuns::Launch().
  const cuda::CurrentGpu current(*gpus_[0]);
  if (Status s = current.status(); !s.ok()) return s;
  Status s =
      communicators_[0]->Check(nccl_->ncclGroupStart(), "ncclGroupStart");
  if (!s.ok()) return s;
  for (const auto& c : communicators_) {
    const Status one = c->Connect(id_, static_cast<int>(communicator_.size));
    begun_ = begun_ || one.ok();
    s.Update(one);
  }
  s.Update(communicators_[0]->Check(nccl_->ncclGroupEnd(), "ncclGroupEnd"));
  return s;
}

Status CommunicatorPart::WaitUntilReady() {
  const Clock::time_point deadline = Clock::now() + timeout_;
  for (;;) {
    const StatusOr<bool> ready = Ready();
    if (!ready.ok()) return ready.status();
    if (*ready) return {};
    if (Clock::now() >= deadline) {
      return Status(
          Code::kDeadlineExceeded,
          "NCCL has not connected the " + std::to_string(communicator_.size) +
              " GPUs of communicator " + std::to_string(communicator_.number) +
              " within " + std::to_string(timeout_.count()) +
              " ms; here NCCL rank " + std::to_string(communicator_.first) +
              " on " + gpus_[0]->uuid());
    }
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, kPollInterval, [this] { return stop_; })) {
      return Stopped();
    }
  }
}

void CommunicatorPart::End(Status status) {
  std::lock_guard lock(mutex_);
  state_ = status.ok() ? State::kReady : State::kFailed;
  error_ = std::move(status);
  changed_.notify_all();
}

StatusOr<bool> CommunicatorPart::Ready() const {
  bool all = true;
  for (const auto& c : communicators_) {
    const StatusOr<bool> ready = c->Ready();
    if (!ready.ok()) return ready.status();
    all = all && *ready;
  }
  return all;
}

CommunicatorPart::State CommunicatorPart::state() const {
  std::lock_guard lock(mutex_);
  return state_;
}

Status CommunicatorPart::error() const {
  std::lock_guard lock(mutex_);
  return error_;
}

void CommunicatorPart::StopConnecting() {
  std::lock_guard lock(mutex_);
  stop_ = true;
  if (state_ == State::kNew) {
    state_ = State::kFailed;
    error_ = Stopped();
  }
  changed_.notify_all();
}

void CommunicatorPart::WaitUntilQuiet() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return state_ != State::kConnecting; });
}

std::vector<nccl::ncclComm_t> CommunicatorPart::Handles() const {
  std::vector<nccl::ncclComm_t> handles;
  const Clock::time_point latest = Clock::now() + kLatestHandle;
  for (const auto& c : communicators_) {
    while (begun_ && c->handle() == nullptr && Clock::now() < latest) {
      std::this_thread::sleep_for(kPollInterval);
    }
    if (c->handle() != nullptr) handles.push_back(c->handle());
  }
  return handles;
}

void CommunicatorPart::NoteAborted() {
  std::lock_guard lock(mutex_);
  aborted_ = true;
  changed_.notify_all();
}

}  // namespace maypole
