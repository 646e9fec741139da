#include "tests/gpu/fake/process.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "tests/gpu/fake/devices.h"

namespace maypole::cuda::fake {
namespace {

constexpr std::chrono::seconds kStopTime(2);

}  // namespace

FakeContext::FakeContext(std::mutex& mutex, std::condition_variable& changed,
                         int device, int gpu, const FakeConfig& config)
    : device(device),
      gpu(gpu),
      engine(mutex, changed, device, config.seed,
             std::chrono::microseconds(config.late_microseconds)),
      legacy(engine.Add(CU_STREAM_LEGACY, Stream::Kind::kLegacy)) {}

FakeThread& FakeThread::Get() {
  thread_local FakeThread thread;
  return thread;
}

FakeProcess& FakeProcess::Get() {
  static FakeProcess* const process = new FakeProcess;
  return *process;
}

FakeProcess::FakeProcess()
    : config_(ReadConfig(std::getenv("MAYPOLE_FAKE_CUDA"))),
      state_(config_.state) {}

CUresult FakeProcess::Initialise() {
  if (process_ != 0) return CheckInitialised();
  Held held(mutex_);
  if (config_.init != CUDA_SUCCESS) return config_.init;
  if (const CUresult error = InjectedFailure("cuInit")) return error;
  if (process_ != 0) return CUDA_SUCCESS;
  const std::vector<int> gpus = VisibleGpus(config_.devices);
  if (gpus.empty()) return CUDA_ERROR_NO_DEVICE;
  for (const int gpu : gpus) {
    const int device = static_cast<int>(contexts_.size());
    contexts_.push_back(
        std::make_unique<FakeContext>(mutex_, changed_, device, gpu, config_));
  }
  std::atexit([] { Get().Stop(); });
  process_ = getpid();
  return CUDA_SUCCESS;
}

CUresult FakeProcess::CheckInitialised() const {
  if (process_ != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
  return stopping_ ? CUDA_ERROR_DEINITIALIZED : CUDA_SUCCESS;
}

// At exit(): work that has not begun is dropped. A kernel that does not end is
// left to the kernel's end of the process.
void FakeProcess::Stop() {
  if (process_ != getpid()) return;
  Held held(mutex_);
  stopping_ = true;
  for (const auto& context : contexts_) context->engine.Stop();
  changed_.notify_all();
  changed_.wait_for(held, kStopTime, [&] {
    return std::all_of(contexts_.begin(), contexts_.end(),
                       [](const auto& c) { return c->engine.stopped(); });
  });
}

CUresult FakeProcess::InjectedFailure(const char* name) {
  if (config_.failures.empty()) return CUDA_SUCCESS;
  const uint64_t call = ++calls_[name];
  for (const FakeConfig::Failure& failure : config_.failures) {
    if (failure.call == name && failure.which == call) return failure.error;
  }
  return CUDA_SUCCESS;
}

FakeContext* FakeProcess::Device(CUdevice device) {
  const auto index = static_cast<size_t>(device);
  return index < contexts_.size() ? contexts_[index].get() : nullptr;
}

FakeContext* FakeProcess::Context(CUcontext handle) {
  for (const auto& context : contexts_) {
    if (context->handle() == handle) return context.get();
  }
  return nullptr;
}

int FakeProcess::DeviceOfGpu(int gpu) const {
  for (const auto& context : contexts_) {
    if (context->gpu == gpu) return context->device;
  }
  return -1;
}

void FakeProcess::Reset(FakeContext& context) {
  const int device = context.device;
  for (const auto& [handle, stream] : streams) {
    if (stream->device == device) context.engine.Remove(stream);
  }
  for (const auto& [thread, stream] : context.per_thread) {
    context.engine.Remove(stream);
  }
  context.per_thread.clear();
  std::erase_if(streams, [&](auto& s) { return s.second->device == device; });
  std::erase_if(events, [&](auto& e) { return e.second.device == device; });
  auto& regions = memory_.regions();
  for (auto it = regions.begin(); it != regions.end();) {
    const auto region = it++;
    const bool own = region->second.kind == MemoryKind::kAllocated ||
                     region->second.kind == MemoryKind::kOpened;
    if (own && region->second.device == device) memory_.UnmapNew(region);
  }
  if (config_.exclusive) state_.Disown(context.gpu);
}

CUresult FakeProcess::FindStream(FakeContext& context, CUstream handle,
                                 std::shared_ptr<Stream>* stream) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY) {
    *stream = context.legacy;
    return context.engine.BlockingCapture() == nullptr
               ? CUDA_SUCCESS
               : CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (handle == CU_STREAM_PER_THREAD) {
    auto& own = context.per_thread[std::this_thread::get_id()];
    if (!own) own = context.engine.Add(handle, Stream::Kind::kBlocking);
    *stream = own;
    return CUDA_SUCCESS;
  }
  const auto it = streams.find(handle);
  if (it == streams.end() || it->second->device != context.device) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  *stream = it->second;
  return CUDA_SUCCESS;
}

Event* FakeProcess::FindEvent(CUevent handle) {
  const auto it = events.find(handle);
  return it == events.end() ? nullptr : &it->second;
}

CUresult FakeProcess::Wait(std::shared_ptr<Operation> operation, Held& held) {
  changed_.wait(held, [&] {
    return operation == nullptr || operation->done || stopping_;
  });
  return stopping_ ? CUDA_ERROR_DEINITIALIZED : CUDA_SUCCESS;
}

CUresult FakeProcess::WaitForAll(Held& held) {
  std::vector<std::shared_ptr<Operation>> pending;
  for (const auto& context : contexts_) {
    for (auto& operation : context->engine.Pending()) {
      pending.push_back(std::move(operation));
    }
  }
  CUresult result = CUDA_SUCCESS;
  for (const auto& operation : pending) result = Wait(operation, held);
  return result;
}

bool FakeProcess::PendingUse(const Range& range) const {
  return std::any_of(contexts_.begin(), contexts_.end(),
                     [&](const auto& c) { return c->engine.Uses(range); });
}

void FakeProcess::AddCapture(std::shared_ptr<Capture> capture) {
  captures_.push_back(std::move(capture));
}

void FakeProcess::EndCapture(const std::shared_ptr<Capture>& capture) {
  capture->ended = true;
  for (const auto& context : contexts_) context->engine.EndCapture(*capture);
  std::erase(captures_, capture);
}

CUresult FakeProcess::CheckCaptures() {
  const CUstreamCaptureMode mode = FakeThread::Get().mode;
  if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  for (const auto& capture : captures_) {
    const bool forbidden =
        capture->thread == std::this_thread::get_id()
            ? capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED
            : mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                  capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!forbidden) continue;
    capture->invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

}  // namespace maypole::cuda::fake
