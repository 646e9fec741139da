// The driver's functions for streams, copies and stream memory operations.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "tests/gpu/fake/calls/enqueue.h"
#include "tests/gpu/fake/calls/entry_points.h"
#include "tests/gpu/fake/process.h"

namespace maypole::cuda::fake {
namespace {

using StreamPointer = std::shared_ptr<Stream>;

void AddUse(const Place& place, Range range, Operation& operation) {
  if (place.kind == Place::kKnown) operation.uses.push_back(range);
}

// Pageable memory is read at once, and written before the call returns.
CUresult Copy(Call& call, Stream& stream, CUdeviceptr to, CUdeviceptr from,
              size_t bytes) {
  const Place target = call.process.memory().Where(to, bytes);
  const Place source = call.process.memory().Where(from, bytes);
  if (target.kind == Place::kWrong || source.kind == Place::kWrong) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Operation copy;
  if (source.kind == Place::kPageable && stream.capture == nullptr) {
    copy.work = [data = target.data, staged = std::vector<std::byte>(
                                         source.data, source.data + bytes)] {
      std::copy(staged.begin(), staged.end(), data);
    };
  } else if (bytes > 0) {
    copy.work = [=] { std::memmove(target.data, source.data, bytes); };
  } else {
    copy.work = [] {};
  }
  AddUse(target, {to, bytes}, copy);
  AddUse(source, {from, bytes}, copy);
  const CUresult result = Enqueue(call, stream, std::move(copy));
  if (target.kind == Place::kKnown || stream.capture != nullptr) return result;
  return call.process.Wait(stream.last, call.held);
}

// A copy that is done when the call returns, on the legacy stream.
CUresult CopyNow(const char* name, CUdeviceptr to, CUdeviceptr from,
                 size_t bytes) {
  return InStream(name, nullptr, [&](Call& call, StreamPointer& stream) {
    if (const CUresult error = call.process.CheckCaptures()) return error;
    if (const CUresult error = Copy(call, *stream, to, from, bytes)) {
      return error;
    }
    return call.process.Wait(stream->last, call.held);
  });
}

CUresult Fill(Call& call, Stream& stream, CUdeviceptr address,
              unsigned char value, size_t bytes) {
  const Place place = call.process.memory().Where(address, bytes);
  if (place.kind != Place::kKnown) return CUDA_ERROR_INVALID_VALUE;
  return Enqueue(call, stream,
                 {.work = [=] { std::memset(place.data, value, bytes); },
                  .uses = {{address, bytes}}});
}

// Whether the host may ask how far the stream is.
CUresult CheckQuery(Call& call, const Stream& stream) {
  if (stream.capture == nullptr) return call.process.CheckCaptures();
  stream.capture->invalidated = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

}  // namespace

extern "C" {

CUresult cuStreamCreate(CUstream* handle, unsigned flags) {
  return InContext("cuStreamCreate", InCapture::kAllowed, [&](Call& call) {
    if (handle == nullptr || (flags & ~CU_STREAM_NON_BLOCKING) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *handle = call.process.NewHandle<CUstream>();
    call.process.streams[*handle] = call.context.engine.Add(
        *handle, flags == CU_STREAM_NON_BLOCKING ? Stream::Kind::kNonBlocking
                                                 : Stream::Kind::kBlocking);
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamDestroy_v2(CUstream handle) {
  return InStream("cuStreamDestroy", handle,
                  [&](Call& call, StreamPointer& stream) {
                    if (call.process.streams.erase(handle) == 0) {
                      return CUDA_ERROR_INVALID_HANDLE;
                    }
                    if (const auto capture = stream->capture) {
                      capture->invalidated = true;
                      if (capture->origin == stream.get()) {
                        call.process.EndCapture(capture);
                      }
                    }
                    call.context.engine.Remove(stream);
                    return CUDA_SUCCESS;
                  });
}

CUresult cuStreamQuery(CUstream handle) {
  return InStream("cuStreamQuery", handle,
                  [&](Call& call, StreamPointer& stream) {
                    const CUresult error = CheckQuery(call, *stream);
                    if (error != CUDA_SUCCESS) return error;
                    return stream->idle() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
                  });
}

CUresult cuStreamSynchronize(CUstream handle) {
  return InStream(
      "cuStreamSynchronize", handle, [&](Call& call, StreamPointer& stream) {
        if (const CUresult error = CheckQuery(call, *stream)) return error;
        if (stream->kind == Stream::Kind::kLegacy) {
          call.context.engine.Push(*stream, {});  // waits for blocking streams
        }
        return call.process.Wait(stream->last, call.held);
      });
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY ||
      handle == CU_STREAM_PER_THREAD) {
    return InContext("cuStreamGetCtx", InCapture::kAllowed, [&](Call& call) {
      *context = call.context.handle();
      return CUDA_SUCCESS;
    });
  }
  // Another stream's context is told to every thread.
  return InProcess("cuStreamGetCtx", [&](FakeProcess& process, auto&) {
    const auto it = process.streams.find(handle);
    if (it == process.streams.end()) return CUDA_ERROR_INVALID_HANDLE;
    *context = process.Device(it->second->device)->handle();
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamWriteValue64_v2(CUstream handle, CUdeviceptr address,
                                 uint64_t value, unsigned flags) {
  return InStream(
      "cuStreamWriteValue64", handle, [&](Call& call, StreamPointer& stream) {
        if (!call.process.config().writes) return CUDA_ERROR_NOT_SUPPORTED;
        if (address % sizeof(value) != 0 ||
            flags != CU_STREAM_WRITE_VALUE_DEFAULT) {
          return CUDA_ERROR_INVALID_VALUE;
        }
        const Place place = call.process.memory().Where(address, sizeof(value));
        if (place.kind != Place::kKnown) {
          Illegal("cuStreamWriteValue64: the address is of no known memory");
        }
        auto* const word = reinterpret_cast<uint64_t*>(place.data);
        return Enqueue(call, *stream,
                       {.work =
                            [=] {
                              std::atomic_ref(*word).store(
                                  value, std::memory_order_release);
                            },
                        .uses = {{address, sizeof(value)}}});
      });
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                       CUstream handle) {
  return InStream("cuMemcpyAsync", handle,
                  [&](Call& call, StreamPointer& stream) {
                    return Copy(call, *stream, to, from, bytes);
                  });
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  return CopyNow("cuMemcpyHtoD", to, reinterpret_cast<CUdeviceptr>(from),
                 bytes);
}

CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  return CopyNow("cuMemcpyDtoH", reinterpret_cast<CUdeviceptr>(to), from,
                 bytes);
}

CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t bytes,
                         CUstream handle) {
  return InStream("cuMemsetD8Async", handle,
                  [&](Call& call, StreamPointer& stream) {
                    return Fill(call, *stream, address, value, bytes);
                  });
}

CUresult cuMemsetD8_v2(CUdeviceptr address, unsigned char value, size_t bytes) {
  return InStream("cuMemsetD8", nullptr,
                  [&](Call& call, StreamPointer& stream) {
                    return Fill(call, *stream, address, value, bytes);
                  });
}

}  // extern "C"

const std::vector<EntryPoint>& StreamEntries() {
  static const auto& entries = *new std::vector<EntryPoint>{
      Entry("cuStreamCreate", 2000, &Driver::cuStreamCreate, cuStreamCreate),
      Entry("cuStreamDestroy", 4000, &Driver::cuStreamDestroy,
            cuStreamDestroy_v2),
      Entry("cuStreamQuery", 2000, &Driver::cuStreamQuery, cuStreamQuery),
      Entry("cuStreamSynchronize", 2000, &Driver::cuStreamSynchronize,
            cuStreamSynchronize),
      Entry("cuStreamGetCtx", 9020, &Driver::cuStreamGetCtx, cuStreamGetCtx),
      Entry("cuStreamWriteValue64", 11070, &Driver::cuStreamWriteValue64,
            cuStreamWriteValue64_v2),
      Entry("cuMemcpyAsync", 4000, &Driver::cuMemcpyAsync, cuMemcpyAsync),
  };
  return entries;
}

}  // namespace maypole::cuda::fake
