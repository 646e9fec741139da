#include "common/gpu/runner/gpu_queue.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "common/gpu/runner/gpu_kernels.h"

namespace maypole {
namespace {

using cuda::CUDA_ERROR_NOT_READY;
using cuda::CUDA_SUCCESS;
using cuda::CUevent;
using cuda::CUfunction;
using cuda::CurrentGpu;

// As many as can run at once: 2048 threads.
constexpr unsigned kBlocksPerMultiprocessor = 2048 / cuda::kBlockThreads;

std::atomic<int>& BusyQueuesOf(const cuda::Gpu& gpu) {
  static std::mutex mutex;
  // Never destroyed: a thread may use it while the process ends.
  static auto& counts = *new std::map<const cuda::Gpu*, std::atomic<int>>;
  std::lock_guard lock(mutex);
  return counts[&gpu];
}

}  // namespace

GpuQueue::GpuQueue(const cuda::Gpu& gpu)
    : gpu_(gpu), busy_queues_(BusyQueuesOf(gpu)) {}

void GpuQueue::NoteBusy() {
  if (busy_ == !idle()) return;
  busy_ = !idle();
  busy_queues_ += busy_ ? 1 : -1;
}

Status GpuQueue::Check(cuda::CUresult result, std::string_view call) const {
  return gpu_.Check(result, call);
}

StatusOr<std::unique_ptr<GpuQueue>> GpuQueue::Make(const cuda::Gpu& gpu) {
  std::unique_ptr<GpuQueue> queue(new GpuQueue(gpu));
  if (Status s = queue->Open(); !s.ok()) return s;
  return queue;
}

Status GpuQueue::Open() {
  const CurrentGpu current(gpu_);
  if (const Status s = current.status(); !s.ok()) return s;
  int multiprocessors = 0;
  const Status s =
      Check(gpu_.driver().cuDeviceGetAttribute(
                &multiprocessors,
                cuda::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, gpu_.number()),
            "cuDeviceGetAttribute");
  if (!s.ok()) return s;
  most_blocks_ = kBlocksPerMultiprocessor *
                 static_cast<unsigned>(std::max(multiprocessors, 1));
  return Check(
      gpu_.driver().cuStreamCreate(&stream_, cuda::CU_STREAM_NON_BLOCKING),
      "cuStreamCreate");
}

Status GpuQueue::CheckKernels() const {
  const CurrentGpu current(gpu_);
  if (const Status s = current.status(); !s.ok()) return s;
  GpuKernels& kernels = GpuKernels::Of(gpu_);
  Status s = kernels.WriteWord().status();
  if (s.ok()) s = kernels.Reduce(DType::kFloat32, Op::kSum).status();
  return s;
}

GpuQueue::~GpuQueue() {
  const CurrentGpu current(gpu_);
  for (const CUevent event : free_events_) {
    gpu_.driver().cuEventDestroy(event);
  }
  if (stream_ != nullptr) gpu_.driver().cuStreamDestroy(stream_);
}

StatusOr<CUevent> GpuQueue::TakeEvent() {
  CUevent event = nullptr;
  if (!free_events_.empty()) {
    event = free_events_.back();
    free_events_.pop_back();
    return event;
  }
  const Status s =
      Check(gpu_.driver().cuEventCreate(&event, cuda::CU_EVENT_DISABLE_TIMING),
            "cuEventCreate");
  if (!s.ok()) return s;
  return event;
}

Status GpuQueue::CheckReady() const {
  if (!failure_.ok()) return failure_;
  if (!launching_) return {};
  return Status(Code::kFailedPrecondition,
                "NCCL has not launched a collective yet, on " + gpu_.uuid());
}

Status GpuQueue::WriteWord(cuda::CUdeviceptr address, uint64_t value) {
  const CurrentGpu current(gpu_);
  const StatusOr<CUfunction> function = GpuKernels::Of(gpu_).WriteWord();
  if (!function.ok()) return function.status();
  void* arguments[] = {&address, &value};
  return Launch(*function, 1, 1, arguments);
}

Status GpuQueue::Reduce(const cuda::Reduction& reduction, Op op) {
  const CurrentGpu current(gpu_);
  const StatusOr<CUfunction> function =
      GpuKernels::Of(gpu_).Reduce(reduction.dtype, op);
  if (!function.ok()) return function.status();
  cuda::ReduceArguments values = cuda::MakeReduceArguments(reduction);
  void* arguments[] = {&values};
  return Launch(*function, cuda::BlocksFor(values, most_blocks_),
                cuda::kBlockThreads, arguments);
}

Status GpuQueue::Copy(std::span<const cuda::CopiedPiece> pieces) {
  const CurrentGpu current(gpu_);
  if (pieces.size() == 1) {
    if (Status s = CheckReady(); !s.ok()) return s;
    const cuda::CopiedPiece& piece = pieces[0];
    const Status s = Check(
        gpu_.driver().cuMemcpyAsync(piece.to, piece.from, piece.bytes, stream_),
        "cuMemcpyAsync");
    if (s.ok()) NoteEnqueued(1);
    return s;
  }
  const StatusOr<CUfunction> function = GpuKernels::Of(gpu_).Copy();
  if (!function.ok()) return function.status();
  cuda::CopyArguments values = cuda::MakeCopyArguments(pieces);
  void* arguments[] = {&values};
  return Launch(*function, cuda::BlocksFor(values, most_blocks_),
                cuda::kBlockThreads, arguments);
}

Status GpuQueue::WaitFor(CUevent event) {
  if (Status s = CheckReady(); !s.ok()) return s;
  const CurrentGpu current(gpu_);
  return Check(gpu_.driver().cuStreamWaitEvent(stream_, event, 0),
               "cuStreamWaitEvent");
}

Status GpuQueue::RecordInto(CUevent event) {
  if (Status s = CheckReady(); !s.ok()) return s;
  const CurrentGpu current(gpu_);
  return Check(gpu_.driver().cuEventRecord(event, stream_), "cuEventRecord");
}

Status GpuQueue::Launch(CUfunction function, unsigned blocks, unsigned threads,
                        void** arguments) {
  if (Status s = CheckReady(); !s.ok()) return s;
  const Status s =
      Check(gpu_.driver().cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1,
                                         0, stream_, arguments, nullptr),
            "cuLaunchKernel");
  if (s.ok()) NoteEnqueued(1);
  return s;
}

Status GpuQueue::Collective(
    size_t count, const std::function<Status(cuda::CUstream)>& begin) {
  if (Status s = CheckReady(); !s.ok()) return s;
  const CurrentGpu current(gpu_);
  if (Status s = current.status(); !s.ok()) return s;
  launching_ = true;
  NoteEnqueued(count);
  return begin(stream_);
}

void GpuQueue::NoteEnqueued(size_t count) {
  if (batch_ == 0) ++launched_;
  batch_ += count;
  enqueued_ += count;
  NoteBusy();
}

Status GpuQueue::Record(Done done) {
  if (batch_ == 0) ++launched_;
  const size_t enqueued = std::exchange(batch_, 0);
  Status s = CheckReady();
  if (s.ok()) {
    const CurrentGpu current(gpu_);
    const StatusOr<CUevent> event = TakeEvent();
    s = event.status();
    if (s.ok()) {
      s = Check(gpu_.driver().cuEventRecord(*event, stream_), "cuEventRecord");
      if (s.ok()) {
        in_flight_.push_back({launched_, enqueued, *event, std::move(done)});
      } else {
        free_events_.push_back(*event);
      }
    }
  }
  if (!s.ok()) Fail(s);
  NoteBusy();
  return s;
}

void GpuQueue::Fail(Status error) {
  if (failure_.ok()) failure_ = std::move(error);
  lost_ = true;
}

bool GpuQueue::Poll() {
  if (idle()) return false;
  const CurrentGpu current(gpu_);
  bool changed = false;
  while (!in_flight_.empty() && PollBatch()) changed = true;
  // After an error of the GPU the stream does nothing more; but the error may
  // have been a call's.
  if (lost_ && batch_ == 0 && !launching_ &&
      gpu_.driver().cuStreamQuery(stream_) != CUDA_ERROR_NOT_READY) {
    lost_ = false;
    ended_ = launched_;
    enqueued_ = 0;
    changed = true;
  }
  NoteBusy();
  return changed;
}

// Polls the first batch in flight; false if it still runs.
bool GpuQueue::PollBatch() {
  if (failure_.ok()) {
    const cuda::CUresult result =
        gpu_.driver().cuEventQuery(in_flight_.front().event);
    if (result == CUDA_ERROR_NOT_READY) return false;
    if (result != CUDA_SUCCESS) Fail(Check(result, "cuEventQuery"));
  }
  Batch batch = std::move(in_flight_.front());
  in_flight_.pop_front();
  free_events_.push_back(batch.event);
  if (failure_.ok()) {
    ended_ = batch.number;
    enqueued_ -= batch.enqueued;
  }
  batch.done(failure_);
  return true;
}

}  // namespace maypole
