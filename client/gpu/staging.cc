#include "client/gpu/staging.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <utility>

#include "client/session/stall_notice.h"
#include "common/system/thread.h"

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
using std::chrono::microseconds;

// Between two looks of the watching thread: the longer nothing becomes ready,
// the longer.
constexpr microseconds kShortestNap{50};
constexpr microseconds kLongestNap{500};
// How long a thread that begins to wait looks itself.
constexpr microseconds kSpin{100};
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

// False if a signal has come.
bool Nap(microseconds time) {
  const timespec t = {0, static_cast<long>(time.count()) * 1000};
  return nanosleep(&t, nullptr) == 0 || errno != EINTR;
}

// After an error of the device nothing uses the memory any more.
bool IsDone(const StagedResources& r) {
  if (r.device == nullptr) return true;
  const CurrentGpu current(*r.device);
  const auto done = [&](cuda::CUevent event) {
    return event == nullptr ||
           r.device->driver().cuEventQuery(event) != CUDA_ERROR_NOT_READY;
  };
  return done(r.copied_in) && done(r.copied_out);
}

void GiveBack(const StagedResources& r, StagingMemory* memory,
              ReadyWords* words) {
  if (r.device == nullptr) return;
  if (r.lost) return memory->NeverFree();
  const CurrentGpu current(*r.device);
  const cuda::Driver& driver = r.device->driver();
  if (r.copied_in != nullptr) driver.cuEventDestroy(r.copied_in);
  if (r.copied_out != nullptr) driver.cuEventDestroy(r.copied_out);
  words->Return(r.word);
  for (const StagingMemory::Block& block : {r.block, r.gathered}) {
    if (block.data != nullptr) memory->Return(block);
  }
}

// Returns those that are done, and keeps the others.
std::vector<StagedResources> TakeDone(std::vector<StagedResources>* all) {
  std::vector<StagedResources> done;
  std::erase_if(*all, [&](const StagedResources& r) {
    if (!IsDone(r)) return false;
    done.push_back(r);
    return true;
  });
  return done;
}

// The body of a thread that owns what a Staging has left. Freeing memory may
// wait for all of the process's work on its GPUs.
void FreeWhenIdle(std::shared_ptr<StagingMemory> memory,
                  std::shared_ptr<ReadyWords> words,
                  std::vector<StagedResources> retired) {
  for (;;) {
    for (const StagedResources& r : TakeDone(&retired)) {
      GiveBack(r, memory.get(), words.get());
    }
    if (retired.empty()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace

// The host memory of one operation, and what the GPU still does with it.
class Staging::Tensor : public StagedTensor {
 public:
  explicit Tensor(std::shared_ptr<Staging> staging)
      : staging_(std::move(staging)) {}
  ~Tensor() override { staging_->Retire(resources); }
  std::byte* GatherInto(uint64_t bytes) override {
    return staging_->GatherInto(bytes, this);
  }

  CUdeviceptr output = 0;  // the operation's own; 0: none
  uint64_t output_bytes = 0;
  std::atomic<uint32_t> looks{0};  // at the word
  std::atomic<bool> input_settled{false};

  // Guards the two below, and resources.copied_out: several threads may want
  // the result.
  std::mutex mutex;
  CUdeviceptr copied_to = 0;  // the last copy out
  CUstream copied_on = nullptr;
  StagedResources resources;

 private:
  const std::shared_ptr<Staging> staging_;
};

Staging::Tensor& Staging::TensorOf(const Operation& operation) {
  return static_cast<Tensor&>(*operation.staged);
}

Staging::Staging(const cuda::Driver& driver, Communicator* communicator,
                 std::shared_ptr<Arena> arena)
    : driver_(driver),
      communicator_(communicator),
      memory_(std::make_shared<StagingMemory>(driver, std::move(arena))),
      words_(std::make_shared<ReadyWords>(driver)) {}

Status Staging::Open(Communicator* communicator, std::shared_ptr<Arena> arena,
                     std::shared_ptr<Staging>* out) {
  const cuda::Driver* driver = nullptr;
  if (Status s = cuda::LoadDriver(&driver); !s.ok()) return s;
  std::shared_ptr<Staging> staging(
      new Staging(*driver, communicator, std::move(arena)));
  if (Status s = StartThread([p = staging.get()] { p->WatchLoop(); },
                             &staging->thread_);
      !s.ok()) {
    return s;
  }
  *out = std::move(staging);
  return Status();
}

void Staging::Leave() {
  std::vector<std::shared_ptr<Operation>> dropped;  // destroyed after the lock
  std::thread thread;
  {
    std::lock_guard lock(mutex_);
    left_ = true;
    dropped.swap(watched_);
    thread.swap(thread_);
  }
  changed_.notify_all();
  if (thread.joinable()) thread.join();
}

Staging::~Staging() {
  Leave();
  if (memory_->allocated() == 0) return;
  std::thread thread;
  const Status s = StartThread(
      [memory = memory_, words = words_, retired = std::move(retired_)] {
        FreeWhenIdle(memory, words, retired);
      },
      &thread);
  if (s.ok()) {
    thread.detach();
    return;
  }
  // Freeing could block this thread: the memory stays.
  new std::shared_ptr<StagingMemory>(memory_);
  new std::shared_ptr<ReadyWords>(words_);
}

// --- Copy in -------------------------------------------------------------

Status Staging::CopyIn(Operation* op, CUstream stream, uint64_t input_bytes,
                       uint64_t output_bytes) {
  Reclaim();
  const CUdeviceptr input = AddressOf(op->input);
  auto tensor = std::make_shared<Tensor>(shared_from_this());
  tensor->output = AddressOf(op->output);
  tensor->output_bytes = output_bytes;
  tensor->input_settled = input_bytes == 0;
  op->staged = tensor;
  op->awaited = false;  // the thread must be woken when the input is ready
  if (Status s = FindDevice(*op, input_bytes, output_bytes, tensor.get());
      !s.ok()) {
    return op->Explain(s);
  }
  op->input = op->output = nullptr;
  const Gpu* const device = tensor->resources.device;
  if (device == nullptr) return Status();
  NoteGpu(*device);
  const CurrentGpu current(*device);
  Status s = current.status();
  if (s.ok()) s = CheckStream(*device, stream);
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
                           uint64_t output_bytes, Tensor* tensor) const {
  const Gpu*& device = tensor->resources.device;
  if (input_bytes > 0) {
    if (Status s = Gpu::OfAddress(driver_, AddressOf(op.input), &device);
        !s.ok()) {
      return Status(s.code(), "input: " + s.message());
    }
  }
  const bool in_place = input_bytes > 0 && op.in_place();
  if (output_bytes == 0 || op.output == nullptr || in_place) return Status();
  const Gpu* other = nullptr;
  if (Status s = Gpu::OfAddress(driver_, tensor->output, &other); !s.ok()) {
    return Status(s.code(), "output: " + s.message());
  }
  if (device != nullptr && other != device) {
    return Bad("input and output are on different GPUs, " + device->uuid() +
               " and " + other->uuid());
  }
  device = other;
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
    return Bad(
        "the stream is capturing a CUDA graph; Maypole's operations "
        "cannot be part of a graph: call them outside of the capture");
  }
  return device.Check(result, "cuStreamIsCapturing");
}

Status Staging::MakeMemory(Operation* op, uint64_t input_bytes,
                           uint64_t output_bytes, Tensor* tensor) {
  const bool own = HasOwnOutput(op->signature.kind);
  const uint64_t output_at = own ? RoundUp(input_bytes, kAlignment) : 0;
  const uint64_t bytes = std::max(input_bytes, output_at + output_bytes);
  StagingMemory::Block& block = tensor->resources.block;
  if (Status s = memory_->Take(bytes, &block); !s.ok()) return s;
  op->input = block.data;
  if (output_bytes > 0) op->output = block.data + output_at;
  return Status();
}

Status Staging::CopyInput(CUdeviceptr from, uint64_t bytes, CUstream stream,
                          Tensor* tensor) {
  StagedResources& r = tensor->resources;
  const Gpu& device = *r.device;
  if (Status s = device.Check(
          driver_.cuEventCreate(&r.copied_in, cuda::CU_EVENT_DISABLE_TIMING),
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
  if (words_->Take(device, &r.word) &&
      words_->Write(r.word, stream) != CUDA_SUCCESS) {
    words_->Return(std::exchange(r.word, {}));  // the event will tell
  }
  const Status s =
      device.Check(driver_.cuEventRecord(r.copied_in, stream), "cuEventRecord");
  r.lost = !s.ok();
  return s;
}

std::byte* Staging::GatherInto(uint64_t bytes, Tensor* tensor) {
  StagedResources& r = tensor->resources;
  if (r.device == nullptr || bytes == 0) return nullptr;
  const CurrentGpu current(*r.device);
  if (!memory_->Take(bytes, &r.gathered).ok()) return nullptr;
  return r.gathered.data;
}

// --- Watch -------------------------------------------------------------------

void Staging::Watch(const std::shared_ptr<Operation>& operation) {
  if (TensorOf(*operation).input_settled) return;
  {
    std::lock_guard lock(mutex_);
    if (left_) return;
    watched_.push_back(operation);
  }
  changed_.notify_one();
}

bool Staging::IsReady(Tensor& tensor, Status* error) const {
  // A device that has failed never writes the word, so the event is asked, too,
  // but rarely.
  constexpr uint32_t kAskEvery = 256;
  const StagedResources& r = tensor.resources;
  if (r.word.address != nullptr) {
    if (ReadyWords::Written(r.word)) return true;
    if (++tensor.looks % kAskEvery != 0) return false;
  }
  const CurrentGpu current(*r.device);
  const CUresult result = driver_.cuEventQuery(r.copied_in);
  // The second: the process is ending.
  if (result == CUDA_ERROR_NOT_READY ||
      result == cuda::CUDA_ERROR_DEINITIALIZED) {
    return false;
  }
  *error = r.device->Check(
      result, "the GPU has failed before the input was copied: cuEventQuery");
  return true;
}

// Queries without the lock: a driver's call may take its time.
bool Staging::Look() {
  std::unique_lock look(look_mutex_, std::try_to_lock);
  if (!look.owns_lock()) return false;
  std::vector<std::shared_ptr<Operation>> watched;
  {
    std::lock_guard lock(mutex_);
    watched = watched_;
  }
  bool any = false;
  for (const std::shared_ptr<Operation>& operation : watched) {
    Tensor& tensor = TensorOf(*operation);
    Status error;
    if (!IsReady(tensor, &error)) continue;
    {
      std::lock_guard lock(mutex_);
      if (std::erase(watched_, operation) == 0) return any;  // Leave() came
    }
    if (error.ok()) {
      communicator_->InputReady(operation);
    } else {
      communicator_->InputFailed(operation, error);
    }
    tensor.input_settled.store(true, std::memory_order_release);
    any = true;
  }
  return any;
}

void Staging::SpinForInput(const Operation& op) {
  const auto until = Clock::now() + kSpin;
  while (!TensorOf(op).input_settled.load(std::memory_order_acquire) &&
         !op.done.load(std::memory_order_acquire) && Clock::now() < until) {
    if (!Look()) sched_yield();
  }
}

void Staging::WatchLoop() {
  microseconds nap = kShortestNap;
  std::unique_lock lock(mutex_);
  while (!left_) {
    if (watched_.empty()) {
      changed_.wait(lock);
      nap = kShortestNap;
      continue;
    }
    lock.unlock();
    nap = Look() ? kShortestNap : std::min(nap + nap / 4, kLongestNap);
    std::this_thread::sleep_for(nap);
    lock.lock();
  }
}

// --- Copy out ------------------------------------------------------------

Status Staging::CopyOut(const Operation& op, CUstream stream, CUdeviceptr to,
                        CopyOutReturns returns) {
  Tensor& tensor = TensorOf(op);
  const uint64_t bytes =
      Gathers(op.signature.kind) ? op.gathered_bytes : tensor.output_bytes;
  if (bytes == 0) return Status();
  if (to == 0) to = tensor.output;
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
  } else {  // the event must come after the earlier copy, too
    s = device.Check(driver_.cuStreamWaitEvent(stream, r.copied_out, 0),
                     "cuStreamWaitEvent");
  }
  if (!s.ok()) return s;
  s = device.Check(
      driver_.cuMemcpyAsync(to, AddressOf(op.output), bytes, stream),
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

// As a wait for an operation: a signal ends it.
Status Staging::AwaitCopy(const Gpu& device, cuda::CUevent event) const {
  const auto spin_until = Clock::now() + kSpin;
  for (;;) {
    const CUresult result = driver_.cuEventQuery(event);
    if (result != CUDA_ERROR_NOT_READY) {
      return device.Check(result, "cuEventQuery after the copy of the result");
    }
    if (Clock::now() < spin_until) {
      sched_yield();
    } else if (!Nap(kShortestNap)) {
      return Status(Code::kCancelled, "a signal interrupted the wait");
    }
  }
}

// --- Memory ------------------------------------------------------------------

void Staging::Retire(const StagedResources& resources) {
  if (IsDone(resources)) {
    return GiveBack(resources, memory_.get(), words_.get());
  }
  std::lock_guard lock(retired_mutex_);
  retired_.push_back(resources);
}

void Staging::Reclaim() {
  std::vector<StagedResources> done;
  {
    std::lock_guard lock(retired_mutex_);
    if (retired_.empty()) return;
    done = TakeDone(&retired_);
  }
  for (const StagedResources& r : done) {
    GiveBack(r, memory_.get(), words_.get());
  }
}

}  // namespace maypole
