#include "client/gpu/staging.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "client/gpu/staging_tensor.h"
#include "client/session/stall_notice.h"
#include "common/gather_room.h"
#include "common/system/memory.h"
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

// How long the watching thread sleeps between two checks: longer, the longer
// nothing becomes ready.
constexpr microseconds kShortestNap{50};
constexpr microseconds kLongestNap{500};
// How long a thread that begins to wait polls itself: longer than a GPU takes
// to switch to another process.
constexpr microseconds kSpin{300};
constexpr uint64_t kAlignment = 64;

// Reducescatter has an output of its own; the result of other kinds overwrites
// the input.
bool HasOwnOutput(Kind kind) { return kind == Kind::kReducescatter; }

std::unique_ptr<RankGpus> MakeRankGpus(const cuda::Driver& driver,
                                       Communicator* communicator,
                                       const GpuMemoryOptions& options) {
  if (options.chooses_site) {
    return std::make_unique<RankGpus>(driver, communicator,
                                      "the executor of its node does");
  }
  if (options.mode != GpuMemoryMode::kOwn) return nullptr;
  return std::make_unique<RankGpus>(
      driver, communicator,
      "CUDA tensors are copied through host memory (MAYPOLE_GPU_SITE=client)");
}

// Neither kernels nor NCCL compute an Adasum, or multiply integers by factors.
bool IsForTheHost(const Signature& s) {
  return Reduces(s.kind) &&
         (s.op == Op::kAdasum || ((s.prescale != 1.0 || s.postscale != 1.0) &&
                                  s.dtype <= DType::kInt64));
}

}  // namespace

Staging::Staging(const cuda::Driver& driver, Communicator* communicator,
                 std::shared_ptr<Arena> arena, const GpuMemoryOptions& options)
    : driver_(driver),
      communicator_(communicator),
      pools_(new StagingPools{
          {driver, std::move(arena)},
          ReadyWords(driver),
          {driver, options,
           [communicator](const session::GpuMemoryRequest& request, int fd) {
             return communicator->SendGpuMemory(request, fd);
           }},
          PrivateGpuMemory(options.limit),
          CopyStreams(driver)}),
      site_(options),
      host_bytes_(options.host_bytes),
      own_(MakeRankGpus(driver, communicator, options)) {}

Status Staging::Open(Communicator* communicator, std::shared_ptr<Arena> arena,
                     const GpuMemoryOptions& options,
                     std::shared_ptr<Staging>* out) {
  const cuda::Driver* driver = nullptr;
  if (Status s = cuda::LoadDriver(&driver); !s.ok()) return s;
  std::shared_ptr<Staging> staging(
      new Staging(*driver, communicator, std::move(arena), options));
  if (Status s = StartThread([p = staging.get()] { p->WatchLoop(); },
                             &staging->thread_);
      !s.ok()) {
    return s;
  }
  if (RankGpus* const own = staging->own_.get(); own != nullptr) {
    communicator->OnConnectGpu([own](const auto& m) { own->OnConnect(m); });
    communicator->OnEpochOver([own] { own->OnEpochOver(); });
  }
  // Each of the two recognizes the numbers of its requests.
  communicator->OnGpuMemoryReply(
      [own = staging->own_.get(), shared = &staging->pools_->shared](
          const session::GpuMemoryReply& reply) {
        if (own != nullptr) own->OnReply(reply);
        shared->OnReply(reply);
      });
  *out = std::move(staging);
  return Status();
}

void Staging::Leave() {
  std::vector<std::shared_ptr<Operation>> dropped;  // destroyed after the lock
  std::thread thread;
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(left_, true)) return;
    dropped.swap(watched_);
    thread.swap(thread_);
  }
  changed_.notify_all();
  pools_->shared.Leave();
  if (own_ != nullptr) own_->Leave();
  communicator_->OnGpuMemoryReply(nullptr);
  communicator_->OnConnectGpu(nullptr);
  communicator_->OnEpochOver(nullptr);
  if (thread.joinable()) thread.join();
}

Staging::~Staging() {
  Leave();
  if (pools_->unused()) return;
  FreeInBackground(std::move(pools_), std::move(retired_));
}

// --- Copy in -------------------------------------------------------------

Status Staging::CopyIn(Operation* op, CUstream stream, uint64_t input_bytes,
                       uint64_t output_bytes) {
  Reclaim();
  const CUdeviceptr input = AddressOf(op->input);
  auto tensor = std::make_shared<Tensor>(shared_from_this());
  tensor->output = AddressOf(op->output);
  tensor->output_bytes = output_bytes;
  tensor->input_bytes = input_bytes;
  tensor->input_settled = input_bytes == 0;
  op->staged = tensor;
  op->awaited = false;  // the thread must be woken when the input is ready
  if (Status s = FindDevice(*op, tensor.get()); !s.ok()) {
    return op->Explain(s);
  }
  op->input = op->output = nullptr;
  if (Gathers(op->signature.kind)) {
    const Signature& s = op->signature;
    tensor->key = IdentityKey(s.process_set, s.kind, op->name);
    if (tensor->resources.device == nullptr)
      FindLastDevice(stream, tensor.get());
  }
  const Gpu* const device = tensor->resources.device;
  if (device == nullptr) return Status();
  NoteGpu(*device);
  const CurrentGpu current(*device);
  Status s = current.status();
  if (s.ok()) s = CheckStream(*device, stream);
  const SiteChoice::Site site = SiteOf(*op, *device);
  if (s.ok() && MayRunOnGpu(*op, input, *tensor, site)) {
    if (site == SiteChoice::Site::kRanks) {
      s = TakeOwnPlace(op, input, stream, tensor.get());
      if (s.ok() && tensor->events != nullptr) return s;
    } else {
      TakePlace(op, input, tensor.get());
    }
  }
  if (s.ok() && Gathers(op->signature.kind) && input_bytes == 0 &&
      !tensor->on_gpu()) {
    tensor->resources.device = nullptr;  // its result may be on another one
    return Status();
  }
  if (s.ok() && tensor->shared == 0) s = MakeMemory(op, tensor.get());
  if (s.ok()) s = CopyInput(input, stream, tensor.get());
  if (s.ok() && input_bytes > 0) op->input_ready = false;
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
Status Staging::FindDevice(const Operation& op, Tensor* tensor) const {
  const Gpu*& device = tensor->resources.device;
  if (tensor->input_bytes > 0) {
    if (Status s = Gpu::OfAddress(driver_, AddressOf(op.input), &device);
        !s.ok()) {
      return Status(s.code(), "input: " + s.message());
    }
  }
  const bool in_place = tensor->input_bytes > 0 && op.in_place();
  if (tensor->output_bytes == 0 || op.output == nullptr || in_place)
    return Status();
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

// A rank without rows has no address that shows its device, so the device of
// its last result is used. Otherwise the others' operation would always run on
// the host.
void Staging::FindLastDevice(CUstream stream, Tensor* tensor) const {
  const Gpu* const gpu = gathered_sizes_.LastOf(tensor->key).gpu;
  if (gpu == nullptr) return;
  const CurrentGpu current(*gpu);
  if (current.status().ok() && CheckStream(*gpu, stream).ok()) {
    tensor->resources.device = gpu;
  }
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

// Whether the operation actually runs on GPUs is decided when all have arrived.
bool Staging::MayRunOnGpu(const Operation& op, CUdeviceptr input,
                          const Tensor& tensor, SiteChoice::Site site) const {
  const Signature& s = op.signature;
  if (site == SiteChoice::Site::kOpen || IsForTheHost(s)) return false;
  uint64_t bytes = s.Bytes();
  if (Gathers(s.kind)) {
    bytes = std::max(bytes, gathered_sizes_.LastOf(tensor.key).bytes);
  }
  // The executor reports whether there is NCCL and, if not, why.
  if (site == SiteChoice::Site::kRanks) {
    return bytes > communicator_->eager_bytes() && RankGpus::CanRun(op);
  }
  const Gpu& device = *tensor.resources.device;
  int64_t on_host = host_bytes_;
  if (on_host == GpuMemoryOptions::kByDevice) {
    on_host = device.under_mps()                          ? 0
              : PlaceOf(op, input, tensor) != kNoGpuPlace ? kSharedHostBytes
                                                          : kCopiedHostBytes;
  }
  return bytes > std::max(communicator_->eager_bytes(),
                          static_cast<uint64_t>(on_host)) &&
         communicator_->MayRunOnGpus(*op.set, s.kind, s.dtype, device.uuid());
}

uint64_t Staging::PlaceOf(const Operation& op, CUdeviceptr input,
                          const Tensor& tensor) const {
  const Signature& s = op.signature;
  if (tensor.input_bytes == 0 || tensor.output != input || HasOwnOutput(s.kind))
    return kNoGpuPlace;
  return pools_->shared.PlaceOf(input, s.Bytes());
}

void Staging::GuessRoom(Operation* op, const Tensor& tensor) const {
  const Signature& s = op->signature;
  op->gpu_room = GatheredRoom(s.kind, s.Bytes(), op->set->size(),
                              gathered_sizes_.LastOf(tensor.key).bytes);
}

// The executor may overwrite the input: a tensor that must keep its contents
// needs a copy.
void Staging::TakePlace(Operation* op, CUdeviceptr input, Tensor* tensor) {
  SharedGpuMemory& shared = pools_->shared;
  uint64_t bytes = op->signature.Bytes();
  const Kind kind = op->signature.kind;
  op->gpu_place = PlaceOf(*op, input, *tensor);
  if (op->gpu_place != kNoGpuPlace) {
    tensor->shared = input;
    return;
  }
  if (Gathers(kind)) {
    GuessRoom(op, *tensor);
    bytes = GpuResultAt(bytes) + op->gpu_room;
  }
  StagedResources& r = tensor->resources;
  r.shared = shared.Take(*r.device, bytes);
  op->gpu_place = r.shared.place;
  tensor->shared = r.shared.address;
}

Status Staging::MakeMemory(Operation* op, Tensor* tensor) {
  const bool own = HasOwnOutput(op->signature.kind);
  const uint64_t output_at = own ? RoundUp(tensor->input_bytes, kAlignment) : 0;
  const uint64_t bytes =
      std::max(tensor->input_bytes, output_at + tensor->output_bytes);
  StagingMemory::Block& block = tensor->resources.block;
  if (Status s = pools_->host.Take(bytes, &block); !s.ok()) return s;
  op->input = block.data;
  if (tensor->output_bytes > 0) op->output = block.data + output_at;
  return Status();
}

// Without an input only the event is recorded: the copy of the result comes
// after the stream's current work on the output.
Status Staging::CopyInput(CUdeviceptr from, CUstream stream, Tensor* tensor) {
  StagedResources& r = tensor->resources;
  const uint64_t bytes = tensor->input_bytes;
  const Gpu& device = *r.device;
  if (Status s = device.Check(
          driver_.cuEventCreate(&r.copied_in, cuda::CU_EVENT_DISABLE_TIMING),
          "cuEventCreate");
      !s.ok()) {
    return s;
  }
  const CUdeviceptr to =
      tensor->shared != 0 ? tensor->shared : AddressOf(r.block.data);
  if (to != from && bytes > 0) {
    const CUresult result = driver_.cuMemcpyAsync(to, from, bytes, stream);
    if (Status s = device.Check(result, "cuMemcpyAsync of the input");
        !s.ok()) {
      return s;
    }
  }
  if (bytes > 0 && pools_->words.Take(device, &r.word) &&
      pools_->words.Write(r.word, stream) != CUDA_SUCCESS) {
    pools_->words.Return(std::exchange(r.word, {}));  // the event will tell
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
  if (!pools_->host.Take(bytes, &r.gathered).ok()) return nullptr;
  return r.gathered.data;
}

// --- Watch -------------------------------------------------------------------

void Staging::Watch(const std::shared_ptr<Operation>& operation,
                    OnInput on_input) {
  Tensor& tensor = TensorOf(*operation);
  if (tensor.input_settled) return;
  tensor.on_input = std::move(on_input);
  {
    std::lock_guard lock(mutex_);
    if (left_) return;
    watched_.push_back(operation);
  }
  changed_.notify_one();
}

bool Staging::IsReady(Tensor& tensor, Status* error) const {
  // A device that has failed never writes the word, so the event is also
  // queried, but rarely.
  constexpr uint32_t kAskEvery = 256;
  const StagedResources& r = tensor.resources;
  if (r.word.address != nullptr) {
    if (ReadyWords::Written(r.word)) return true;
    if (++tensor.looks % kAskEvery != 0) return false;
  }
  const CurrentGpu current(*r.device);
  const CUresult result = driver_.cuEventQuery(r.copied_in);
  // DEINITIALIZED: the process is ending.
  if (result == CUDA_ERROR_NOT_READY ||
      result == cuda::CUDA_ERROR_DEINITIALIZED) {
    return false;
  }
  *error = r.device->Check(
      result, "the GPU has failed before the input was copied: cuEventQuery");
  return true;
}

// Queries without the lock: a call of the driver may take long.
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
    if (tensor.on_input != nullptr) {
      tensor.on_input(error);
    } else if (error.ok()) {
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
    if (watched_.empty() && going_to_host_.empty()) {
      changed_.wait(lock);
      nap = kShortestNap;
      continue;
    }
    const bool on_host = AnyIsOnHost();
    lock.unlock();
    if (on_host) communicator_->Wake();
    nap =
        Look() || on_host ? kShortestNap : std::min(nap + nap / 4, kLongestNap);
    std::this_thread::sleep_for(nap);
    lock.lock();
  }
}

// --- Memory ------------------------------------------------------------------

void Staging::Retire(const StagedResources& resources) {
  if (IsDone(resources)) return GiveBack(resources, pools_.get());
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
  for (const StagedResources& r : done) GiveBack(r, pools_.get());
}

}  // namespace maypole
