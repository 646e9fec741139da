// The driver's functions for events and for the capture of streams.
#include <chrono>
#include <memory>
#include <utility>

#include "tests/gpu/fake/calls/enqueue.h"
#include "tests/gpu/fake/calls/entry_points.h"
#include "tests/gpu/fake/process.h"

namespace maypole::cuda::fake {
namespace {

using StreamPointer = std::shared_ptr<Stream>;

// Calls body(call, event) if there is such an event.
template <typename Body>
CUresult WithEvent(const char* name, InCapture capture, CUevent handle,
                   Body body) {
  return InContext(name, capture, [&](Call& call) {
    Event* const event = call.process.FindEvent(handle);
    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    return body(call, *event);
  });
}

// Whether the host may ask whether the event is done.
CUresult CheckQuery(const Event& event) {
  if (event.capture == nullptr) return CUDA_SUCCESS;
  event.capture->invalidated = true;
  return kCapturedEvent;
}

// The stream joins the capture that the event belongs to.
CUresult Join(Stream& stream, const Event& event) {
  if (event.capture->ended) return kCapturedEvent;
  if (stream.kind == Stream::Kind::kLegacy) {
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (stream.capture != nullptr && stream.capture != event.capture) {
    stream.capture->invalidated = event.capture->invalidated = true;
    return kCaptureMerge;
  }
  stream.capture = event.capture;
  return CUDA_SUCCESS;
}

CUresult WaitFor(Call& call, Stream& stream, const Event& event) {
  if (event.capture != nullptr) return Join(stream, event);
  if (event.record == nullptr) return CUDA_SUCCESS;
  if (stream.capture != nullptr) {
    stream.capture->invalidated = true;
    return kCaptureIsolation;
  }
  return Enqueue(call, stream, {.after = {event.record}});
}

}  // namespace

extern "C" {

CUresult cuEventCreate(CUevent* handle, unsigned flags) {
  return InContext("cuEventCreate", InCapture::kAllowed, [&](Call& call) {
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *handle = call.process.NewHandle<CUevent>();
    call.process.events[*handle] = {
        .device = call.context.device,
        .timing = (flags & CU_EVENT_DISABLE_TIMING) == 0};
    return CUDA_SUCCESS;
  });
}

CUresult cuEventDestroy_v2(CUevent handle) {
  return WithEvent("cuEventDestroy", InCapture::kAllowed, handle,
                   [&](Call& call, Event&) {
                     call.process.events.erase(handle);
                     return CUDA_SUCCESS;
                   });
}

CUresult cuEventRecord(CUevent handle, CUstream stream_handle) {
  return InStream("cuEventRecord", stream_handle,
                  [&](Call& call, StreamPointer& stream) {
                    Event* const event = call.process.FindEvent(handle);
                    if (event == nullptr || event->device != stream->device) {
                      return CUDA_ERROR_INVALID_HANDLE;
                    }
                    const CUresult result = Enqueue(call, *stream, {});
                    if (result != CUDA_SUCCESS) return result;
                    event->capture = stream->capture;
                    if (event->capture == nullptr) event->record = stream->last;
                    return CUDA_SUCCESS;
                  });
}

CUresult cuEventQuery(CUevent handle) {
  return WithEvent("cuEventQuery", InCapture::kUnsafe, handle,
                   [&](Call&, Event& event) {
                     const CUresult error = CheckQuery(event);
                     if (error != CUDA_SUCCESS) return error;
                     return event.done() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
                   });
}

CUresult cuEventSynchronize(CUevent handle) {
  return WithEvent("cuEventSynchronize", InCapture::kUnsafe, handle,
                   [&](Call& call, Event& event) {
                     const CUresult error = CheckQuery(event);
                     if (error != CUDA_SUCCESS) return error;
                     return call.process.Wait(event.record, call.held);
                   });
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent begin_handle,
                            CUevent end_handle) {
  return InContext("cuEventElapsedTime", InCapture::kAllowed, [&](Call& call) {
    const Event* const begin = call.process.FindEvent(begin_handle);
    const Event* const end = call.process.FindEvent(end_handle);
    if (begin == nullptr || end == nullptr || !begin->timing || !end->timing ||
        begin->record == nullptr || end->record == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!begin->done() || !end->done()) return CUDA_ERROR_NOT_READY;
    *milliseconds = std::chrono::duration<float, std::milli>(
                        end->record->done_at - begin->record->done_at)
                        .count();
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned) {
  return InStream("cuStreamWaitEvent", stream_handle,
                  [&](Call& call, StreamPointer& stream) {
                    const Event* const event = call.process.FindEvent(handle);
                    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
                    return WaitFor(call, *stream, *event);
                  });
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return InProcess("cuThreadExchangeStreamCaptureMode", [&](auto&, auto&) {
    if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::swap(*mode, FakeThread::Get().mode);
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  return InContext("cuStreamIsCapturing", InCapture::kAllowed, [&](Call& call) {
    StreamPointer stream;
    const CUresult error =
        call.process.FindStream(call.context, handle, &stream);
    if (error != CUDA_SUCCESS) return error;
    if (stream->capture == nullptr) {
      *status = CU_STREAM_CAPTURE_STATUS_NONE;
    } else {
      *status = stream->capture->invalidated
                    ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                    : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  return InStream(
      "cuStreamBeginCapture", handle, [&](Call& call, StreamPointer& stream) {
        if (stream->kind == Stream::Kind::kLegacy) {
          return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
        if (stream->capture != nullptr) return kIllegalState;
        stream->capture = std::make_shared<Capture>(
            Capture{stream.get(), mode, std::this_thread::get_id()});
        call.process.AddCapture(stream->capture);
        return CUDA_SUCCESS;
      });
}

// The graph is null: nothing can be done with it.
CUresult cuStreamEndCapture(CUstream handle, void** graph) {
  return InStream(
      "cuStreamEndCapture", handle, [&](Call& call, StreamPointer& stream) {
        const std::shared_ptr<Capture> capture = stream->capture;
        if (graph != nullptr) *graph = nullptr;
        if (capture == nullptr || capture->origin != stream.get()) {
          return kIllegalState;
        }
        if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
            capture->thread != std::this_thread::get_id()) {
          return kCaptureWrongThread;
        }
        call.process.EndCapture(capture);
        return capture->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                                    : CUDA_SUCCESS;
      });
}

}  // extern "C"

const std::vector<EntryPoint>& EventEntries() {
  static const auto& entries = *new std::vector<EntryPoint>{
      Entry("cuEventCreate", 2000, &Driver::cuEventCreate, cuEventCreate),
      Entry("cuEventDestroy", 4000, &Driver::cuEventDestroy, cuEventDestroy_v2),
      Entry("cuEventRecord", 2000, &Driver::cuEventRecord, cuEventRecord),
      Entry("cuEventQuery", 2000, &Driver::cuEventQuery, cuEventQuery),
      Entry("cuEventSynchronize", 2000, &Driver::cuEventSynchronize,
            cuEventSynchronize),
      Entry("cuEventElapsedTime", 2000, &Driver::cuEventElapsedTime,
            cuEventElapsedTime),
      Entry("cuStreamWaitEvent", 3020, &Driver::cuStreamWaitEvent,
            cuStreamWaitEvent),
      Entry("cuThreadExchangeStreamCaptureMode", 10010,
            &Driver::cuThreadExchangeStreamCaptureMode,
            cuThreadExchangeStreamCaptureMode),
      Entry("cuStreamIsCapturing", 10000, &Driver::cuStreamIsCapturing,
            cuStreamIsCapturing),
  };
  return entries;
}

}  // namespace maypole::cuda::fake
