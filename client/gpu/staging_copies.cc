// The part of Staging that copies after the input is ready: the input to the
// host, and the result to the user's memory.
#include <sched.h>
#include <time.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <utility>

#include "client/gpu/staging.h"
#include "client/gpu/staging_tensor.h"

namespace maypole {
namespace {

using cuda::CUDA_ERROR_NOT_READY;
using cuda::CUdeviceptr;
using cuda::CUresult;
using cuda::CurrentGpu;
using cuda::CUstream;
using cuda::Gpu;
using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

constexpr microseconds kNap{50};
// How long a wait for a copy polls before it sleeps.
constexpr microseconds kSpin{100};

}  // namespace

bool Staging::Nap(microseconds time) {
  const timespec t = {0, static_cast<long>(time.count()) * 1000};
  return nanosleep(&t, nullptr) == 0 || errno != EINTR;
}

// --- To the host -------------------------------------------------------------

Status Staging::BringToHost(Operation* op, Tensor* tensor, bool* done) {
  *done = !tensor->on_gpu();
  if (*done) return Status();
  StagedResources& r = tensor->resources;
  const CurrentGpu current(*r.device);
  if (r.brought == nullptr) {
    if (Status s = BeginToHost(op, tensor); !s.ok()) return op->Explain(s);
  }
  const CUresult result = driver_.cuEventQuery(r.brought);
  if (result == CUDA_ERROR_NOT_READY) return Status();
  if (Status s = r.device->Check(
          result,
          "the GPU has failed before the input was copied to the host: "
          "cuEventQuery");
      !s.ok()) {
    return op->Explain(s);
  }
  *done = true;
  return Status();
}

Status Staging::BeginToHost(Operation* op, Tensor* tensor) {
  StagedResources& r = tensor->resources;
  const Gpu& device = *r.device;
  CUstream stream = nullptr;
  Status s = pools_->streams.Of(device, &stream);
  if (s.ok()) s = MakeMemory(op, tensor);
  if (s.ok() && tensor->events != nullptr) {  // it may not be written yet
    s = device.Check(
        driver_.cuStreamWaitEvent(stream, tensor->events->ready(), 0),
        "cuStreamWaitEvent");
  }
  if (s.ok()) {
    s = device.Check(
        driver_.cuEventCreate(&r.brought, cuda::CU_EVENT_DISABLE_TIMING),
        "cuEventCreate");
  }
  if (s.ok() && tensor->input_bytes > 0) {
    s = device.Check(
        driver_.cuMemcpyAsync(AddressOf(r.block.data), tensor->shared,
                              tensor->input_bytes, stream),
        "cuMemcpyAsync of the input");
  }
  if (!s.ok()) return s;
  s = device.Check(driver_.cuEventRecord(r.brought, stream), "cuEventRecord");
  r.lost |= !s.ok();
  if (!s.ok()) return s;
  {
    std::lock_guard lock(mutex_);
    going_to_host_.push_back(tensor);
  }
  changed_.notify_one();
  return Status();
}

void Staging::EndToHost(Tensor* tensor) {
  std::lock_guard lock(mutex_);
  std::erase(going_to_host_, tensor);
}

// Removes the tensors whose copies have ended, even by an error. The caller has
// locked mutex_, so that no event is destroyed meanwhile.
bool Staging::AnyIsOnHost() {
  return std::erase_if(going_to_host_, [&](Tensor* tensor) {
           const StagedResources& r = tensor->resources;
           const CurrentGpu current(*r.device);
           return driver_.cuEventQuery(r.brought) != CUDA_ERROR_NOT_READY;
         }) > 0;
}

// --- Copy out ------------------------------------------------------------

Status Staging::CopyOut(const Operation& op, CUstream stream, CUdeviceptr to,
                        CopyOutReturns returns) {
  Tensor& tensor = TensorOf(op);
  const uint64_t bytes =
      Gathers(op.signature.kind) ? op.gathered_bytes : tensor.output_bytes;
  const bool runs_here = tensor.resources.run != nullptr;
  if (bytes == 0) {  // but NCCL may still read the input
    return runs_here ? AwaitRun(op, stream, returns) : Status();
  }
  if (to == 0) to = tensor.output;
  const bool there = tensor.result != 0 && to == tensor.result;
  if (there && !runs_here) return Status();
  if (to == 0) {
    return Bad(op.Title() + ": its result of " + std::to_string(bytes) +
               " bytes needs memory on the GPU to be copied to");
  }
  const Gpu* device = nullptr;
  if (Status s = Gpu::OfAddress(driver_, to, &device); !s.ok()) {
    return op.Explain(Status(s.code(), "output: " + s.message()));
  }
  if (!tensor.key.empty()) gathered_sizes_.Note(tensor.key, device, bytes);
  const CurrentGpu current(*device);
  Status s = current.status();
  if (s.ok()) s = CheckStream(*device, stream);
  if (s.ok() && runs_here) {
    s = AwaitRun(op, stream, returns);
    if (!s.ok() || there) return s;
  }
  if (s.ok()) s = Enqueue(op, *device, to, bytes, stream);
  // Memory that is not page-locked ends with the operation.
  if (s.ok() && (returns == CopyOutReturns::kWhenDone || op.gathered)) {
    s = AwaitCopy(*device, tensor.resources.copied_out);
  }
  return s.ok() ? s : op.Explain(s);
}

Status Staging::Enqueue(const Operation& op, const Gpu& device, CUdeviceptr to,
                        uint64_t bytes, CUstream stream) {
  Tensor& tensor = TensorOf(op);
  std::lock_guard lock(tensor.mutex);
  StagedResources& r = tensor.resources;
  if (r.device == nullptr) r.device = &device;
  if (r.device != &device) {
    return Bad("its input is on " + r.device->uuid() +
               ", the memory for its result on " + device.uuid());
  }
  if (tensor.copied_to == to && tensor.copied_on == stream) return Status();
  Status s;
  if (r.copied_out == nullptr) {
    s = device.Check(
        driver_.cuEventCreate(&r.copied_out, cuda::CU_EVENT_DISABLE_TIMING),
        "cuEventCreate");
    // The submission's stream may still work on the output: that comes first.
    // If there was an input, that work is long done.
    if (s.ok() && r.copied_in != nullptr) {
      s = device.Check(driver_.cuStreamWaitEvent(stream, r.copied_in, 0),
                       "cuStreamWaitEvent");
    }
  } else {  // the event must also come after the earlier copy
    s = device.Check(driver_.cuStreamWaitEvent(stream, r.copied_out, 0),
                     "cuStreamWaitEvent");
  }
  if (!s.ok()) return s;
  const CUdeviceptr from =
      tensor.result != 0 ? tensor.result : AddressOf(op.output);
  s = device.Check(driver_.cuMemcpyAsync(to, from, bytes, stream),
                   "cuMemcpyAsync of the result");
  if (!s.ok()) return s;
  s = device.Check(driver_.cuEventRecord(r.copied_out, stream),
                   "cuEventRecord");
  r.lost |= !s.ok();
  if (!s.ok()) return s;
  tensor.copied_to = to;
  tensor.copied_on = stream;
  return Status();
}

// Like a wait for an operation, it ends at a signal.
Status Staging::AwaitCopy(const Gpu& device, cuda::CUevent event) const {
  const auto spin_until = Clock::now() + kSpin;
  for (;;) {
    const CUresult result = driver_.cuEventQuery(event);
    if (result != CUDA_ERROR_NOT_READY) {
      return device.Check(result, "cuEventQuery after the copy of the result");
    }
    if (Clock::now() < spin_until) {
      sched_yield();
    } else if (!Nap(kNap)) {
      return Status(Code::kCancelled, "a signal interrupted the wait");
    }
  }
}

}  // namespace maypole
