#include "tests/gpu/fake/library_hook.h"

#include <memory>
#include <utility>
#include <vector>

#include "tests/gpu/fake/devices.h"
#include "tests/gpu/fake/process.h"

namespace maypole::cuda::fake {
namespace {

using OperationPointer = std::shared_ptr<Operation>;
using Streams = std::vector<std::shared_ptr<Stream>>;

CUresult FindStreams(FakeProcess& process, FakeContext& context,
                     const FakeCudaLaunch& launch, Streams* streams) {
  for (size_t i = 0; i < launch.stream_count; ++i) {
    std::shared_ptr<Stream> stream;
    if (const CUresult error =
            process.FindStream(context, launch.streams[i], &stream)) {
      return error;
    }
    if (stream->capture != nullptr) {
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    streams->push_back(std::move(stream));
  }
  return streams->empty() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

// Fills the operation's work and the memory that it uses.
CUresult SetWork(FakeProcess& process, const FakeCudaLaunch& launch,
                 Operation* operation) {
  std::vector<void*> host;
  for (size_t i = 0; i < launch.range_count; ++i) {
    const FakeCudaRange& range = launch.ranges[i];
    host.push_back(nullptr);
    if (range.bytes == 0) continue;
    const Place place = process.memory().Where(range.start, range.bytes);
    if (place.kind != Place::kKnown) return CUDA_ERROR_INVALID_VALUE;
    host.back() = place.data;
    operation->uses.push_back({range.start, range.bytes});
  }
  operation->work = [work = launch.work, argument = launch.argument,
                     host = std::move(host)] { work(argument, host.data()); };
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult fakeCudaCurrent(CUcontext* context, CUuuid* uuid) {
  const FakeProcess& process = FakeProcess::Get();
  if (const CUresult error = process.CheckInitialised()) return error;
  FakeProcess::Held held(FakeProcess::Get().mutex());
  const auto& contexts = FakeThread::Get().contexts;
  if (contexts.empty() || contexts.back()->retained == 0) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  *context = contexts.back()->handle();
  *uuid = GpuUuid(contexts.back()->gpu);
  return CUDA_SUCCESS;
}

CUresult fakeCudaEnqueue(const FakeCudaLaunch* launch, void** result) {
  FakeProcess& process = FakeProcess::Get();
  if (const CUresult error = process.CheckInitialised()) return error;
  FakeProcess::Held held(process.mutex());
  FakeContext* const context = process.Context(launch->context);
  if (context == nullptr || context->retained == 0) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  Streams streams;
  Operation operation;
  if (const CUresult error =
          FindStreams(process, *context, *launch, &streams)) {
    return error;
  }
  if (const CUresult error = SetWork(process, *launch, &operation)) {
    return error;
  }
  if (launch->previous != nullptr) {
    operation.after.push_back(
        *static_cast<OperationPointer*>(launch->previous));
  }
  for (size_t i = 1; i < streams.size(); ++i) {
    if (!streams[i]->idle()) operation.after.push_back(streams[i]->last);
  }
  context->engine.Push(*streams[0], std::move(operation));
  const OperationPointer pushed = streams[0]->last;
  for (size_t i = 1; i < streams.size(); ++i) {
    if (streams[i] == streams[0]) continue;
    context->engine.Push(*streams[i], {.after = {pushed}});
  }
  *result = new OperationPointer(pushed);
  return CUDA_SUCCESS;
}

CUresult fakeCudaWait(void* operation) {
  FakeProcess& process = FakeProcess::Get();
  if (const CUresult error = process.CheckInitialised()) return error;
  FakeProcess::Held held(process.mutex());
  if (operation == nullptr) return process.WaitForAll(held);
  return process.Wait(*static_cast<OperationPointer*>(operation), held);
}

void fakeCudaForget(void* operation) {
  delete static_cast<OperationPointer*>(operation);
}

}  // extern "C"

}  // namespace maypole::cuda::fake
