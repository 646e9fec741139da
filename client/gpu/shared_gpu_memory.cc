#include "client/gpu/shared_gpu_memory.h"

#include <sched.h>

#include <algorithm>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "client/session/stall_notice.h"
#include "common/system/memory.h"

namespace maypole {
namespace {

using cuda::CUDA_ERROR_NOT_READY;
using cuda::CUdeviceptr;
using cuda::CurrentGpu;
using cuda::Gpu;
using session::GpuSharing;

uint64_t RandomProof() {
  std::random_device random;
  const uint64_t high = random();
  return high << 32 | random() | 1;
}

// The user is told each text once per process and GPU.
void TellOnce(const Gpu& gpu, const std::string& text, const std::string& why) {
  static std::mutex mutex;
  static auto& told = *new std::set<std::string>;
  {
    std::lock_guard lock(mutex);
    if (!told.insert(gpu.uuid() + text).second) return;
  }
  TellUser("maypole: no memory of " + gpu.uuid() + " (" + gpu.name() + ") " +
           text + why);
}

// Never unmapped: the GPU may still write there.
void KeepForEver(std::unique_ptr<SharedMapping> mapping) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::unique_ptr<SharedMapping>>;
  std::lock_guard lock(mutex);
  kept.push_back(std::move(mapping));
}

}  // namespace

struct SharedGpuMemory::Segment {
  const Gpu* gpu = nullptr;
  uint32_t number = 0;
  GpuSharing sharing = GpuSharing::kDescriptor;
  uint64_t bytes = 0;
  uint64_t proof = 0;
  uint32_t executors_gpu = 0;              // the executor's number of the GPU
  std::unique_ptr<SharedMapping> mapping;  // null: the handle is not here yet
  bool reading = false;                    // the proof
  FreeRanges free;
  uint64_t taken = 0;  // blocks

  CUdeviceptr address() const { return mapping->address(); }
  uint64_t PlaceAt(uint64_t offset) const {
    return PackGpuPlace({number, executors_gpu, offset});
  }
};

// Guarded by setup_mutex_.
struct SharedGpuMemory::PerGpu {
  explicit PerGpu(const Gpu& g) : gpu(g) {}

  const Gpu& gpu;
  std::vector<GpuSharing> ways;      // that may work; the first one is tried
  uint64_t limit = 0;                // bytes
  uint64_t total = 0;                // bytes of usable and pending segments
  uint64_t granularity = 0;          // 0: not asked yet
  std::unique_ptr<Segment> pending;  // asked for, not usable yet
  Clock::time_point not_before{};    // of the next request
  std::string failures;              // of the ways
};

SharedGpuMemory::SharedGpuMemory(const cuda::Driver& driver,
                                 const GpuMemoryOptions& options, Send send)
    : driver_(driver),
      options_(options),
      send_(std::move(send)),
      proofs_(driver) {}

SharedGpuMemory::~SharedGpuMemory() {
  Leave();
  for (auto& [gpu, state] : gpus_) {
    const CurrentGpu current(*gpu);
    proofs_.Drain(*gpu);
  }
  for (auto& segment : segments_) {
    if (segment->taken > 0) KeepForEver(std::move(segment->mapping));
  }
}

void SharedGpuMemory::Leave() {
  std::lock_guard setup(setup_mutex_);  // no request is being sent
  std::lock_guard lock(mutex_);
  left_ = true;
}

uint64_t SharedGpuMemory::allocated() const {
  std::lock_guard lock(mutex_);
  return allocated_;
}

bool SharedGpuMemory::unused() const {
  std::lock_guard setup(setup_mutex_);
  return gpus_.empty();
}

void SharedGpuMemory::SkipNumbers(uint32_t last) {
  std::lock_guard setup(setup_mutex_);
  last_number_ = std::max(last_number_, last);
}

void SharedGpuMemory::OnReply(const session::GpuMemoryReply& reply) {
  std::lock_guard lock(mutex_);
  if (asked_.erase(reply.number) == 1) replies_[reply.number] = reply;
}

// --- Blocks ------------------------------------------------------------------

SharedGpuMemory::Block SharedGpuMemory::Take(const Gpu& gpu, uint64_t bytes) {
  if (!enabled() || bytes == 0 || bytes > kMaxGpuMemoryBytes / 2) return {};
  bytes = RoundUp(bytes, kGpuPlaceAlignment);
  if (const Block block = Find(gpu, bytes); block.place != kNoGpuPlace) {
    return block;
  }
  {
    std::unique_lock setup(setup_mutex_, std::try_to_lock);
    if (!setup.owns_lock()) return {};
    Advance(Of(gpu), bytes);
  }
  return Find(gpu, bytes);
}

SharedGpuMemory::Block SharedGpuMemory::Find(const Gpu& gpu, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  if (left_) return {};
  for (const auto& segment : segments_) {
    uint64_t offset = 0;
    if (segment->gpu != &gpu || !segment->free.Take(bytes, &offset)) continue;
    ++segment->taken;
    return {segment->address() + offset, bytes, segment->PlaceAt(offset)};
  }
  return {};
}

SharedGpuMemory::Segment* SharedGpuMemory::Containing(
    CUdeviceptr address) const {
  for (const auto& segment : segments_) {
    if (address >= segment->address() &&
        address - segment->address() < segment->bytes) {
      return segment.get();
    }
  }
  return nullptr;
}

void SharedGpuMemory::Return(const Block& block) {
  if (block.place == kNoGpuPlace) return;
  std::lock_guard lock(mutex_);
  Segment* const segment = Containing(block.address);
  --segment->taken;
  segment->free.Add(block.address - segment->address(), block.bytes);
}

bool SharedGpuMemory::IsComing(const Gpu& gpu) {
  std::lock_guard setup(setup_mutex_);
  std::lock_guard lock(mutex_);
  return !left_ && Of(gpu).pending != nullptr;
}

CUdeviceptr SharedGpuMemory::Allocate(const Gpu& gpu, uint64_t bytes) {
  const auto until = Clock::now() + kAllocatePatience;
  Block block = Take(gpu, bytes);
  while (block.place == kNoGpuPlace && IsComing(gpu) && Clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    block = Take(gpu, bytes);
  }
  if (block.place == kNoGpuPlace) return 0;
  std::lock_guard lock(mutex_);
  allocations_[block.address] = block;
  return block.address;
}

void SharedGpuMemory::Free(CUdeviceptr address) {
  Block block;
  {
    std::lock_guard lock(mutex_);
    const auto found = allocations_.find(address);
    if (found == allocations_.end()) return;
    block = found->second;
    allocations_.erase(found);
  }
  Return(block);
}

uint64_t SharedGpuMemory::PlaceOf(CUdeviceptr address, uint64_t bytes) const {
  std::lock_guard lock(mutex_);
  const Segment* const segment = left_ ? nullptr : Containing(address);
  if (segment == nullptr) return kNoGpuPlace;
  const uint64_t offset = address - segment->address();
  if (offset < kGpuPlaceAlignment || offset % kGpuPlaceAlignment != 0 ||
      bytes > segment->bytes - offset) {
    return kNoGpuPlace;
  }
  return segment->PlaceAt(offset);
}

// --- Segments ----------------------------------------------------------------

SharedGpuMemory::PerGpu& SharedGpuMemory::Of(const Gpu& gpu) {
  std::unique_ptr<PerGpu>& state = gpus_[&gpu];
  if (state != nullptr) return *state;
  state = std::make_unique<PerGpu>(gpu);
  if (options_.mode != GpuMemoryMode::kIpcHandle) {
    state->ways.push_back(GpuSharing::kDescriptor);
  }
  if (options_.mode != GpuMemoryMode::kDescriptor) {
    state->ways.push_back(GpuSharing::kIpcHandle);
  }
  const CurrentGpu current(gpu);
  size_t free = 0, total = 0;
  if (driver_.cuMemGetInfo(&free, &total) != cuda::CUDA_SUCCESS) total = 0;
  state->limit =
      options_.limit < 0 ? total / 8 : static_cast<uint64_t>(options_.limit);
  return *state;
}

// Makes room for the bytes, or takes the next step towards that.
void SharedGpuMemory::Advance(PerGpu& gpu, uint64_t bytes) {
  const CurrentGpu current(gpu.gpu);
  if (gpu.pending != nullptr && !Settle(gpu)) return;
  {
    std::lock_guard lock(mutex_);
    if (left_) return;
    for (const auto& segment : segments_) {
      if (segment->gpu == &gpu.gpu && segment->free.largest() >= bytes) return;
    }
  }
  Ask(gpu, bytes);
}

// True if the pending segment has become usable, or never will be.
bool SharedGpuMemory::Settle(PerGpu& gpu) {
  Segment& segment = *gpu.pending;
  Status s;
  if (!segment.reading) {
    session::GpuMemoryReply reply;
    {
      std::lock_guard lock(mutex_);
      const auto found = replies_.find(segment.number);
      if (left_ || found == replies_.end()) return false;
      reply = found->second;
      replies_.erase(found);
    }
    s = Accept(segment, reply);
    if (s.ok()) s = proofs_.Begin(gpu.gpu, segment.address());
    segment.reading = s.ok();
  }
  if (s.ok() && !ProofIsRead(segment, &s)) return false;
  if (!s.ok()) {
    Fail(gpu, s);
    return true;
  }
  segment.free.Add(kGpuPlaceAlignment, segment.bytes - kGpuPlaceAlignment);
  std::lock_guard lock(mutex_);
  segments_.push_back(std::move(gpu.pending));
  return true;
}

Status SharedGpuMemory::Accept(Segment& segment,
                               const session::GpuMemoryReply& reply) {
  if (reply.code != 0) return Status(static_cast<Code>(reply.code), reply.text);
  if (reply.gpu >= kMaxGpus) {
    return Status(Code::kInternal, "the executor sent an invalid GPU number");
  }
  segment.executors_gpu = reply.gpu;
  if (segment.mapping != nullptr) return Status();
  return SharedMapping::Open(*segment.gpu, reply.handle, segment.bytes,
                             &segment.mapping);
}

bool SharedGpuMemory::ProofIsRead(const Segment& segment, Status* error) {
  const auto until = Clock::now() + kProofPatience;
  uint64_t value = 0;
  while (!proofs_.Done(*segment.gpu, &value, error)) {
    if (Clock::now() >= until) return false;
    sched_yield();
  }
  if (error->ok() && value != segment.proof) {
    *error = Status(Code::kDataLoss,
                    "what the executor writes to it does not arrive here");
  }
  return true;
}

// A lack of memory is temporary; any other failure rules out this way of
// sharing.
void SharedGpuMemory::Fail(PerGpu& gpu, const Status& why) {
  if (gpu.pending != nullptr) {
    Segment& segment = *gpu.pending;
    proofs_.Drain(gpu.gpu);
    gpu.total -= segment.bytes;
    {
      std::lock_guard lock(mutex_);
      allocated_ -= segment.bytes;
      asked_.erase(segment.number);
    }
    gpu.pending.reset();
  }
  if (why.code() == Code::kResourceExhausted) {
    gpu.not_before = Clock::now() + kRetryAfter;
    TellOnce(gpu.gpu,
             "is left to be shared with this node's executor, so some CUDA "
             "tensors are copied through host memory; use smaller batches, or "
             "limit what ranks share by MAYPOLE_GPU_MEMORY_BYTES: ",
             why.message() + "; this rank shares " +
                 std::to_string(gpu.total >> 20) + " MiB");
    return;
  }
  gpu.failures += (gpu.failures.empty() ? "" : "; ") +
                  std::string(gpu.ways.front() == GpuSharing::kDescriptor
                                  ? "by descriptor: "
                                  : "by IPC handle: ") +
                  why.message();
  gpu.ways.erase(gpu.ways.begin());
  // The executor has no kernels, or no such GPU: no way of sharing helps.
  if (why.code() == Code::kNotFound) gpu.ways.clear();
  if (!gpu.ways.empty()) return;
  TellOnce(gpu.gpu,
           "can be shared with this node's executor, so CUDA tensors are "
           "copied through host memory: ",
           gpu.failures);
}

void SharedGpuMemory::Ask(PerGpu& gpu, uint64_t bytes) {
  if (gpu.granularity == 0) {
    gpu.granularity = SharedMapping::Granularity(gpu.gpu);
  }
  const uint64_t step = gpu.granularity;
  const uint64_t least = RoundUp(bytes + kGpuPlaceAlignment, step);
  const uint64_t room =
      gpu.limit > gpu.total ? (gpu.limit - gpu.total) / step * step : 0;
  const uint64_t wanted =
      RoundUp(std::clamp(gpu.total, kSmallestSegment, kLargestStep), step);
  if (least > room) return;
  while (!gpu.ways.empty() && last_number_ < kMaxGpuMemories &&
         Clock::now() >= gpu.not_before) {
    Status s = AskFor(gpu, std::min(std::max(wanted, least), room));
    if (s.code() == Code::kResourceExhausted && gpu.pending == nullptr) {
      s = AskFor(gpu, least);
    }
    if (s.ok()) return;
    Fail(gpu, s);
  }
}

Status SharedGpuMemory::AskFor(PerGpu& gpu, uint64_t bytes) {
  auto request = session::Make<session::GpuMemoryRequest>();
  auto segment = std::make_unique<Segment>();
  segment->gpu = &gpu.gpu;
  segment->number = request.number = last_number_ + 1;
  segment->sharing = gpu.ways.front();
  request.sharing = static_cast<uint32_t>(segment->sharing);
  segment->bytes = request.bytes = bytes;
  segment->proof = request.proof = RandomProof();
  cuda::CUuuid uuid = {};
  Status s = gpu.gpu.Check(driver_.cuDeviceGetUuid(&uuid, gpu.gpu.number()),
                           "cuDeviceGetUuid");
  std::copy(std::begin(uuid.bytes), std::end(uuid.bytes), request.uuid);
  Fd descriptor;
  if (s.ok() && segment->sharing == GpuSharing::kDescriptor) {
    s = SharedMapping::Create(gpu.gpu, bytes, &segment->mapping, &descriptor);
  }
  if (!s.ok()) return s;
  {
    std::lock_guard lock(mutex_);
    if (left_) return Status();
    asked_.insert(request.number);
    allocated_ += bytes;
  }
  gpu.total += bytes;
  gpu.pending = std::move(segment);
  s = send_(request, descriptor.get());
  if (s.ok()) last_number_ = request.number;
  return s;
}

}  // namespace maypole
