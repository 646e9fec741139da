#include "client/gpu/staging.h"

#include <sched.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <system_error>
#include <utility>

#include "client/session/stall_notice.h"
#include "common/system/resource_limits.h"

namespace maypole {
namespace {

using cuda::CUDA_ERROR_NOT_READY;
using cuda::CUDA_SUCCESS;
using cuda::CUdeviceptr;
using cuda::CUresult;
using cuda::CurrentGpu;
using cuda::CUstream;
using cuda::Gpu;
using Clock = std::chrono::steady_clock;

// Between two looks: of the thread while inputs are outstanding, of a waiter
// after it has spun for kWaiterSpin.
constexpr auto kLookEvery = std::chrono::microseconds(50);
constexpr auto kWaiterSpin = std::chrono::microseconds(100);
// See kWaitInterruptible.
constexpr auto kLongestWait = std::chrono::milliseconds(100);
// How long Leave() waits for copies.
constexpr auto kPatience = std::chrono::seconds(1);
constexpr uint64_t kAlignment = 64;

CUdeviceptr AddressOf(const std::byte* memory) {
  return reinterpret_cast<CUdeviceptr>(memory);
}

// What the kinds need: reducescatter has an output of its own, the others'
// result takes the place of the input.
bool HasOwnOutput(Kind kind) { return kind == Kind::kReducescatter; }

Status Bad(std::string message) {
  return Status(Code::kInvalidArgument, std::move(message));
}

void SleepFor(std::chrono::microseconds time, bool* interrupted) {
  const timespec t = {0, static_cast<long>(time.count()) * 1000};
  *interrupted = nanosleep(&t, nullptr) != 0 && errno == EINTR;
}

}  // namespace

StagedTensor::~StagedTensor() { staging_->Retire(device_, resources_); }

Staging::Staging(const cuda::Driver& driver, Communicator* communicator,
                 std::shared_ptr<Arena> arena)
    : driver_(driver),
      communicator_(communicator),
      memory_(driver, std::move(arena)),
      words_(driver) {}

Status Staging::Open(Communicator* communicator, std::shared_ptr<Arena> arena,
                     std::shared_ptr<Staging>* out) {
  const cuda::Driver* driver = nullptr;
  if (Status s = cuda::LoadDriver(&driver); !s.ok()) return s;
  std::shared_ptr<Staging> staging(
      new Staging(*driver, communicator, std::move(arena)));
  if (Status s = staging->StartThread(); !s.ok()) return s;
  *out = std::move(staging);
  return Status();
}

Status Staging::StartThread() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status status;
  try {
    thread_ = std::thread([this] { WatchLoop(); });
  } catch (const std::system_error& e) {
    status = ResourceStatus(e.code().value(), Needs::kThread,
                            "cannot start a thread");
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status;
}

void Staging::Leave() {
  {
    std::lock_guard lock(mutex_);
    left_ = true;
    watched_.clear();
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Staging::~Staging() {
  Leave();
  const auto deadline = Clock::now() + kPatience;
  Reclaim();
  while (!retired_.empty() && Clock::now() < deadline) {
    std::this_thread::sleep_for(kLookEvery);
    Reclaim();
  }
  if (retired_.empty()) return;
  memory_.Abandon();
  words_.Abandon();
}

// --- Pack --------------------------------------------------------------------

Status Staging::Pack(Operation* op, CUstream stream, uint64_t input_bytes,
                     uint64_t output_bytes) {
  Reclaim();
  const CUdeviceptr input = AddressOf(op->input);
  auto tensor = std::make_shared<StagedTensor>(shared_from_this());
  tensor->output_ = AddressOf(op->output);
  tensor->output_bytes_ = output_bytes;
  tensor->input_settled_ = input_bytes == 0;
  op->staged = tensor;
  op->awaited = false;  // the thread must be woken when the input is ready
  if (Status s = FindDevice(*op, input_bytes, output_bytes, tensor.get());
      !s.ok()) {
    return op->Explain(s);
  }
  op->input = op->output = nullptr;
  if (tensor->device_ == nullptr) return Status();
  NoteGpu(*tensor->device_);
  const CurrentGpu current(*tensor->device_);
  Status s = current.status();
  if (s.ok()) s = CheckStream(*tensor->device_, stream);
  if (s.ok()) s = MakeMemory(op, input_bytes, output_bytes, tensor.get());
  if (s.ok() && input_bytes > 0) {
    s = CopyInput(input, input_bytes, stream, tensor.get());
    op->input_ready = false;
  }
  return s.ok() ? s : op->Explain(s);
}

// A script that forgets to choose its GPU uses the first one, on all ranks.
void Staging::NoteGpu(const Gpu& device) {
  if (noted_gpu_.exchange(&device) == &device) return;
  const int other = communicator_->NoteGpu(device.uuid());
  int visible = 0;
  if (other < 0 || driver_.cuDeviceGetCount(&visible) != CUDA_SUCCESS ||
      visible < 2) {
    return;
  }
  TellUser("maypole: this rank uses the same GPU as rank " +
           std::to_string(other) + ", " + device.uuid() + " (" + device.name() +
           "), but sees " + std::to_string(visible) +
           " GPUs: choose one by local_rank() "
           "(torch.cuda.set_device(hvd.local_rank())), or start the job with "
           "maypolerun --bind-gpus");
}

// The device of the input and of the output, which must be the same. Leaves it
// null if there is neither.
Status Staging::FindDevice(const Operation& op, uint64_t input_bytes,
                           uint64_t output_bytes, StagedTensor* tensor) const {
  if (input_bytes > 0) {
    if (Status s =
            Gpu::OfAddress(driver_, AddressOf(op.input), &tensor->device_);
        !s.ok()) {
      return Status(s.code(), "input: " + s.message());
    }
  }
  if (output_bytes == 0 || op.output == nullptr) return Status();
  const Gpu* other = nullptr;
  if (Status s = Gpu::OfAddress(driver_, tensor->output_, &other); !s.ok()) {
    return Status(s.code(), "output: " + s.message());
  }
  if (tensor->device_ != nullptr && other != tensor->device_) {
    return Bad("input and output are on different GPUs, " +
               tensor->device_->uuid() + " and " + other->uuid());
  }
  tensor->device_ = other;
  return Status();
}

Status Staging::CheckStream(const Gpu& device, CUstream stream) const {
  const bool named = stream != nullptr && stream != cuda::CU_STREAM_LEGACY &&
                     stream != cuda::CU_STREAM_PER_THREAD;
  cuda::CUcontext context = device.context();
  if (named) {
    const CUresult result = driver_.cuStreamGetCtx(stream, &context);
    if (Status s = device.Check(result, "cuStreamGetCtx"); !s.ok()) return s;
  }
  if (context != device.context()) {
    return Bad(
        "the stream belongs to another device than the tensor, which is "
        "on " +
        device.uuid());
  }
  cuda::CUstreamCaptureStatus capture = cuda::CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver_.cuStreamIsCapturing(stream, &capture);
  if (result == cuda::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ||
      capture != cuda::CU_STREAM_CAPTURE_STATUS_NONE) {
    return Status(Code::kFailedPrecondition,
                  "the stream is capturing a CUDA graph; Maypole's operations "
                  "cannot be part of a graph: call them outside of the "
                  "capture");
  }
  return device.Check(result, "cuStreamIsCapturing");
}

Status Staging::MakeMemory(Operation* op, uint64_t input_bytes,
                           uint64_t output_bytes, StagedTensor* tensor) {
  const bool own = HasOwnOutput(op->signature.kind);
  const uint64_t output_at =
      own ? (input_bytes + kAlignment - 1) / kAlignment * kAlignment : 0;
  const uint64_t bytes = std::max(input_bytes, output_at + output_bytes);
  StagingMemory::Block& block = tensor->resources_.block;
  if (Status s = memory_.Take(bytes, &block); !s.ok()) return s;
  op->input = block.data;
  if (output_bytes > 0) op->output = block.data + output_at;
  return Status();
}

Status Staging::CopyInput(CUdeviceptr from, uint64_t bytes, CUstream stream,
                          StagedTensor* tensor) {
  const Gpu& device = *tensor->device_;
  Resources& r = tensor->resources_;
  if (Status s = device.Check(
          driver_.cuEventCreate(&r.packed, cuda::CU_EVENT_DISABLE_TIMING),
          "cuEventCreate");
      !s.ok()) {
    return s;
  }
  if (Status s = device.Check(
          driver_.cuMemcpyAsync(AddressOf(r.block.data), from, bytes, stream),
          "cuMemcpyAsync of the input");
      !s.ok()) {
    return s;
  }
  if (words_.Take(device, &r.word) &&
      words_.Write(r.word, stream) != CUDA_SUCCESS) {
    words_.Return(std::exchange(r.word, {}));  // the event will tell
  }
  return device.Check(driver_.cuEventRecord(r.packed, stream), "cuEventRecord");
}

// --- Watch -------------------------------------------------------------------

void Staging::Watch(const std::shared_ptr<Operation>& operation) {
  if (operation->staged->input_settled_) return;
  {
    std::lock_guard lock(mutex_);
    if (left_) return;
    watched_.push_back(operation);
  }
  changed_.notify_one();
}

bool Staging::IsReady(StagedTensor& tensor, Status* error) const {
  // A device that has failed never writes the word, so the event is asked, too,
  // but rarely.
  constexpr uint32_t kAskEvery = 256;
  const Resources& r = tensor.resources_;
  if (r.word.address != nullptr) {
    if (ReadyWords::Written(r.word)) return true;
    if (++tensor.looks_ % kAskEvery != 0) return false;
  }
  const CurrentGpu current(*tensor.device_);
  const CUresult result = driver_.cuEventQuery(r.packed);
  if (result == CUDA_ERROR_NOT_READY) return false;
  *error = tensor.device_->Check(
      result, "the GPU has failed before the input was copied: cuEventQuery");
  return true;
}

std::vector<Staging::Settled> Staging::TakeSettled() {
  std::vector<Settled> settled;
  std::lock_guard lock(mutex_);
  std::erase_if(watched_, [&](const std::shared_ptr<Operation>& op) {
    Status error;
    if (!IsReady(*op->staged, &error)) return false;
    settled.push_back({op, std::move(error)});
    return true;
  });
  return settled;
}

bool Staging::Look() {
  const std::vector<Settled> settled = TakeSettled();
  for (const auto& [operation, error] : settled) {
    if (error.ok()) {
      communicator_->InputReady(operation);
    } else {
      communicator_->InputFailed(operation, error);
    }
    operation->staged->input_settled_.store(true, std::memory_order_release);
  }
  return !settled.empty();
}

Status Staging::AwaitInput(const Operation& op, int timeout_ms) {
  const auto start = Clock::now();
  while (!op.staged->input_settled_.load(std::memory_order_acquire) &&
         !op.done.load(std::memory_order_acquire)) {
    if (Look()) continue;
    const auto waited = Clock::now() - start;
    if (timeout_ms >= 0 && waited >= std::chrono::milliseconds(timeout_ms)) {
      return Status(Code::kDeadlineExceeded, op.Title() + " is still pending");
    }
    if (timeout_ms == kWaitInterruptible && waited >= kLongestWait) {
      return Status(Code::kCancelled, "the wait returns while the GPU works");
    }
    if (waited < kWaiterSpin) {
      sched_yield();
      continue;
    }
    bool interrupted = false;
    SleepFor(kLookEvery, &interrupted);
    if (interrupted) {
      return Status(Code::kCancelled, "a signal interrupted the wait");
    }
  }
  return Status();
}

void Staging::WatchLoop() {
  std::unique_lock lock(mutex_);
  while (!left_) {
    if (watched_.empty()) {
      changed_.wait(lock);
      continue;
    }
    lock.unlock();
    Look();
    std::this_thread::sleep_for(kLookEvery);
    lock.lock();
  }
}

// --- Unpack ------------------------------------------------------------------

Status Staging::Unpack(const Operation& op, CUstream stream, CUdeviceptr to,
                       UnpackReturns returns) {
  StagedTensor& tensor = *op.staged;
  const bool gathers = Gathers(op.signature.kind);
  const uint64_t bytes = gathers ? op.gathered_bytes : tensor.output_bytes_;
  if (bytes == 0) return Status();
  if (to == 0) to = tensor.output_;
  if (to == 0) {
    return Bad(op.Title() + ": its result of " + std::to_string(bytes) +
               " bytes needs memory on the GPU to be copied to");
  }
  const Gpu* device = nullptr;
  if (Status s = Gpu::OfAddress(driver_, to, &device); !s.ok()) {
    return op.Explain(Status(s.code(), "output: " + s.message()));
  }
  const CurrentGpu current(*device);
  Status s = current.status();
  if (s.ok()) s = CheckStream(*device, stream);
  if (s.ok()) {
    const std::byte* from = gathers ? op.gathered.get() : op.output;
    s = CopyResult(*device, from, to, bytes, stream, &tensor);
  }
  if (s.ok() && returns == UnpackReturns::kWhenDone) {
    s = device->Check(driver_.cuEventSynchronize(tensor.resources_.unpacked),
                      "cuEventSynchronize");
  }
  return s.ok() ? s : op.Explain(s);
}

Status Staging::CopyResult(const Gpu& device, const std::byte* from,
                           CUdeviceptr to, uint64_t bytes, CUstream stream,
                           StagedTensor* tensor) {
  std::lock_guard lock(mutex_);  // several threads may want the result
  if (tensor->device_ == nullptr) tensor->device_ = &device;
  if (tensor->device_ != &device) {
    return Bad("its input is on " + tensor->device_->uuid() +
               ", the memory for its result on " + device.uuid());
  }
  cuda::CUevent& event = tensor->resources_.unpacked;
  Status s;
  if (event == nullptr) {
    s = device.Check(
        driver_.cuEventCreate(&event, cuda::CU_EVENT_DISABLE_TIMING),
        "cuEventCreate");
  }
  if (s.ok()) {
    s = device.Check(driver_.cuMemcpyAsync(to, AddressOf(from), bytes, stream),
                     "cuMemcpyAsync of the result");
  }
  if (!s.ok()) return s;
  return device.Check(driver_.cuEventRecord(event, stream), "cuEventRecord");
}

// --- Memory ------------------------------------------------------------------

// After an error of the device nothing uses the memory any more.
bool Staging::IsDone(const Retired& retired) {
  const cuda::Driver& driver = retired.device->driver();
  const CurrentGpu current(*retired.device);
  const auto done = [&](cuda::CUevent event) {
    return event == nullptr ||
           driver.cuEventQuery(event) != CUDA_ERROR_NOT_READY;
  };
  return done(retired.resources.packed) && done(retired.resources.unpacked);
}

void Staging::FreeNow(const Retired& retired) {
  const Resources& r = retired.resources;
  const CurrentGpu current(*retired.device);
  if (r.packed != nullptr) driver_.cuEventDestroy(r.packed);
  if (r.unpacked != nullptr) driver_.cuEventDestroy(r.unpacked);
  words_.Return(r.word);
  if (r.block.data != nullptr) memory_.Return(r.block);
}

void Staging::Retire(const Gpu* device, const Resources& resources) {
  if (device == nullptr) return;
  const Retired retired = {device, resources};
  if (IsDone(retired)) return FreeNow(retired);
  std::lock_guard lock(mutex_);
  retired_.push_back(retired);
}

void Staging::Reclaim() {
  std::lock_guard lock(mutex_);
  std::erase_if(retired_, [this](const Retired& retired) {
    if (!IsDone(retired)) return false;
    FreeNow(retired);
    return true;
  });
}

}  // namespace maypole
