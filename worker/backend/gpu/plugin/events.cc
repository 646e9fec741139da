// Events, including those imported from other processes.
#include <cstring>

#include "worker/backend/gpu/plugin/device.h"

using maypole::gpu::plugin::Check;
using maypole::gpu::plugin::EventEntry;
using maypole::gpu::plugin::InvalidArgument;

namespace {

// gpu.h: EventUse.
constexpr int kTiming = 0;
constexpr int kOrder = 1;
constexpr int kInterprocess = 2;
// Not in EventUse: an event that was imported from another process.
constexpr int kImported = 3;

unsigned int FlagsOf(int use) {
  switch (use) {
    case kTiming:
      return cudaEventDefault;
    case kOrder:
      return cudaEventDisableTiming;
    case kInterprocess:  // CUDA does not allow timing for these
      return cudaEventInterprocess | cudaEventDisableTiming;
    default:
      throw InvalidArgument("unknown use " + std::to_string(use) +
                            " of an event");
  }
}

}  // namespace

uint64_t MaypoleGpu::CreateEvent(int use) {
  EventEntry entry{nullptr, use};
  Check(cudaEventCreateWithFlags(&entry.event, FlagsOf(use)),
        "cudaEventCreateWithFlags");
  return events_.Add(entry);
}

void MaypoleGpu::DestroyEvent(uint64_t event) {
  Check(cudaEventDestroy(events_.Take(event).event), "cudaEventDestroy");
}

void MaypoleGpu::Record(uint64_t event, uint64_t stream) {
  Check(cudaEventRecord(events_.Get(event).event, streams_.Get(stream)),
        "cudaEventRecord");
}

void MaypoleGpu::WaitEvent(uint64_t stream, uint64_t event) {
  Check(cudaStreamWaitEvent(streams_.Get(stream), events_.Get(event).event, 0),
        "cudaStreamWaitEvent");
}

bool MaypoleGpu::EventDone(uint64_t event) {
  const cudaError_t result = cudaEventQuery(events_.Get(event).event);
  if (result == cudaErrorNotReady) return false;
  Check(result, "cudaEventQuery");
  return true;
}

double MaypoleGpu::Milliseconds(uint64_t from, uint64_t to) {
  const EventEntry begin = events_.Get(from);
  const EventEntry end = events_.Get(to);
  if (begin.use != kTiming || end.use != kTiming) {
    throw InvalidArgument("both events must have been created for timing");
  }
  float milliseconds = 0;
  Check(cudaEventElapsedTime(&milliseconds, begin.event, end.event),
        "cudaEventElapsedTime");
  return milliseconds;
}

void MaypoleGpu::ExportEvent(uint64_t event, uint8_t handle[64]) {
  const EventEntry entry = events_.Get(event);
  if (entry.use != kInterprocess) {
    throw InvalidArgument(
        "only an event that this process has created for other processes can "
        "be exported");
  }
  cudaIpcEventHandle_t ipc = {};
  static_assert(sizeof(ipc) == 64);
  Check(cudaIpcGetEventHandle(&ipc, entry.event), "cudaIpcGetEventHandle");
  memcpy(handle, &ipc, sizeof(ipc));
}

uint64_t MaypoleGpu::ImportEvent(const uint8_t handle[64]) {
  cudaIpcEventHandle_t ipc = {};
  memcpy(&ipc, handle, sizeof(ipc));
  EventEntry entry{nullptr, kImported};
  Check(cudaIpcOpenEventHandle(&entry.event, ipc), "cudaIpcOpenEventHandle");
  return events_.Add(entry);
}
