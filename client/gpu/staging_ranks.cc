// The part of Staging for ranks that call NCCL themselves, on the user's
// tensors.
#include <sched.h>

#include <chrono>
#include <thread>
#include <utility>

#include "client/gpu/staging.h"
#include "client/gpu/staging_tensor.h"

namespace maypole {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr microseconds kNap{50};
constexpr microseconds kSpin{100};
// After the end of an epoch, how long the GPU may still write to the tensors;
// as for operations that have not ended (AbortIsOverdue).
constexpr milliseconds kPatience{700};
// How long NCCL's error may be known before the epoch's, for which
// RankGpuRuns::AwaitCause() waits at most 4 s.
constexpr milliseconds kCausePatience{5000};

}  // namespace

SiteChoice::Site Staging::SiteOf(const Operation& op, const cuda::Gpu& device) {
  const SiteChoice::Site site = 
      site_.Of(*communicator_, *op.set, device.under_mps());
  if (site != SiteChoice::Site::kRanks || !site_.chooses() ||
      !own_->IsRefused(device)) {
    return site;
  }
  // First: another thread may share memory as soon as the site has changed.
  pools_->shared.SkipNumbers(own_->StopAnnouncing());
  site_.LeaveToExecutors();
  return SiteChoice::Site::kExecutors;
}

// Leaves tensor->events null if the operation runs on the host.
Status Staging::TakeOwnPlace(Operation* op, cuda::CUdeviceptr input,
                             cuda::CUstream stream, Tensor* tensor) {
  StagedResources& r = tensor->resources;
  const cuda::Gpu& device = *r.device;
  const uint64_t place = own_->PlaceOf(device);
  if (place == kNoGpuPlace || !IsApart(op->signature.kind, input, *tensor)) {
    return Status();
  }
  if (Gathers(op->signature.kind)) {
    GuessRoom(op, *tensor);
    r.result = pools_->results.Take(device, op->gpu_room);
    if (r.result.address == 0) return Status();
  }
  Status s = RankEvents::Record(device, stream, &tensor->events);
  if (!s.ok()) return s;
  op->gpu_place = place;
  tensor->shared = input;
  tensor->input_settled = true;
  return Status();
}

// NCCL works in place or between separate buffers. Its in-place reducescatter
// leaves the result at the rank's rows of the input, where no output can be.
bool Staging::IsApart(Kind kind, cuda::CUdeviceptr input,
                      const Tensor& tensor) {
  if (tensor.input_bytes == 0 || tensor.output_bytes == 0) return true;
  if (input == tensor.output && kind != Kind::kReducescatter) return true;
  return input + tensor.input_bytes <= tensor.output ||
         tensor.output + tensor.output_bytes <= input;
}

std::shared_ptr<RankRun> Staging::BeginOnRank(
    const RankPart& part, const std::vector<Operation*>& operations) {
  if (own_ == nullptr) return nullptr;
  std::vector<RankTensor> tensors;
  for (const Operation* const op : operations) {
    if (op->staged == nullptr) return nullptr;
    const Tensor& tensor = TensorOf(*op);
    if (tensor.events == nullptr) return nullptr;
    tensors.push_back({op, tensor.shared, tensor.OwnResult(), tensor.events});
  }
  std::shared_ptr<RankGpuRun> run = own_->Begin(part, tensors);
  for (const Operation* const op : operations) {
    TensorOf(*op).resources.run = run;
  }
  return run;
}

// If the caller waits for NCCL's stream, its own stream does not: an abort that
// hangs would leave it stuck.
Status Staging::AwaitRun(const Operation& op, cuda::CUstream stream,
                         CopyOutReturns returns) const {
  const Tensor& tensor = TensorOf(op);
  const cuda::Gpu& device = *tensor.resources.device;
  RankGpuRun& run = *tensor.resources.run;
  RankRun::State state = RankRun::State::kWaiting;
  const bool failed = !run.Poll(&state).ok();
  if (returns == CopyOutReturns::kWhenDone || failed) {
    const Status s = AwaitEnd(run);
    return s.ok() ? s : op.Explain(s);
  }
  const cuda::CurrentGpu current(device);
  Status s = communicator_->EpochStatus();
  if (s.ok()) s = CheckStream(device, stream);
  if (s.ok()) {
    s = device.Check(driver_.cuStreamWaitEvent(stream, tensor.events->ran(), 0),
                     "cuStreamWaitEvent");
  }
  return s.ok() ? s : op.Explain(s);
}

// Like a wait for an operation, it ends at a signal, and at the end of the
// epoch, with its error.
Status Staging::AwaitEnd(RankGpuRun& run) const {
  const auto spin_until = Clock::now() + kSpin;
  auto over_since = Clock::time_point::max();
  auto failed_since = Clock::time_point::max();
  for (;;) {
    RankRun::State state = RankRun::State::kWaiting;
    const Status s = run.Poll(&state);
    const bool done = state == RankRun::State::kEnded;
    if (done && s.ok()) return Status();
    const Status epoch = communicator_->EpochStatus();
    const auto now = Clock::now();
    if (!epoch.ok()) {
      over_since = std::min(over_since, now);
      if (done || now - over_since > kPatience) return epoch;
    } else if (done) {
      failed_since = std::min(failed_since, now);
      if (now - failed_since > kCausePatience) return s;
    }
    if (now < spin_until) {
      sched_yield();
    } else if (!Nap(kNap)) {
      return Status(Code::kCancelled, "a signal interrupted the wait");
    }
  }
}

}  // namespace maypole
