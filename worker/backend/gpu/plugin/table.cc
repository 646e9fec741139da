// The plugin's table. Its functions catch all exceptions.
#include <exception>
#include <memory>
#include <new>

#include "worker/backend/gpu/plugin/device.h"
#include "worker/backend/gpu/plugin/failure.h"
#include "worker/backend/gpu/plugin/libraries.h"
#include "worker/backend/gpu/plugin_abi.h"

namespace maypole::gpu::plugin {
namespace {

// Runs `body` and converts its exceptions to an error. `where` is appended to
// the text.
template <typename Body>
int Guard(const std::string& where, MaypoleGpuError* error, const Body& body) {
  try {
    body();
    return MAYPOLE_GPU_OK;
  } catch (Failure& failure) {
    failure.text += where;
    return Report(failure, error);
  } catch (const std::bad_alloc&) {
    return Report({MAYPOLE_GPU_RESOURCE_EXHAUSTED, 0, "no host memory"}, error);
  } catch (const std::exception& e) {
    return Report({MAYPOLE_GPU_INTERNAL, 0, e.what()}, error);
  }
}

// As Guard, with the device's context current.
template <typename Body>
int On(MaypoleGpu* gpu, MaypoleGpuError* error, const Body& body) {
  return Guard(gpu->where(), error, [&] {
    const Current current(*gpu);
    body();
  });
}

using Error = MaypoleGpuError;

int Initialize(const char* nccl, MaypoleGpuVersions* versions, Error* error) {
  return Guard("", error, [&] { *versions = LoadLibraries(nccl).versions; });
}
int Count(int32_t* count, Error* error) {
  return Guard("", error, [&] { *count = DeviceCount(); });
}
int Info(int32_t index, MaypoleGpuDeviceInfo* info, Error* error) {
  return Guard(", of GPU " + std::to_string(index), error,
               [&] { *info = InfoOfDevice(index); });
}
int Open(int32_t index, MaypoleGpu** gpu, Error* error) {
  return Guard(", of GPU " + std::to_string(index), error,
               [&] { *gpu = std::make_unique<MaypoleGpu>(index).release(); });
}
void Close(MaypoleGpu* gpu) { delete gpu; }

int Room(MaypoleGpu* gpu, uint64_t* free, uint64_t* total, Error* error) {
  return On(gpu, error, [&] { gpu->MemoryRoom(free, total); });
}
int Allocate(MaypoleGpu* gpu, uint64_t* bytes, uint64_t* address,
             Error* error) {
  return On(gpu, error, [&] { *address = gpu->Allocate(bytes); });
}
int Export(MaypoleGpu* gpu, uint64_t address, int* fd, Error* error) {
  return On(gpu, error, [&] { *fd = gpu->Export(address); });
}
int Import(MaypoleGpu* gpu, int fd, uint64_t bytes, uint64_t* address,
           Error* error) {
  return On(gpu, error, [&] { *address = gpu->Import(fd, bytes); });
}
int Free(MaypoleGpu* gpu, uint64_t address, Error* error) {
  return On(gpu, error, [&] { gpu->Free(address); });
}
int RegisterHost(MaypoleGpu* gpu, void* host, uint64_t bytes, uint64_t* address,
                 Error* error) {
  return On(gpu, error, [&] { *address = gpu->RegisterHost(host, bytes); });
}
int UnregisterHost(MaypoleGpu* gpu, void* host, Error* error) {
  return On(gpu, error, [&] { gpu->UnregisterHost(host); });
}

int CreateStream(MaypoleGpu* gpu, uint64_t* stream, Error* error) {
  return On(gpu, error, [&] { *stream = gpu->CreateStream(); });
}
int DestroyStream(MaypoleGpu* gpu, uint64_t stream, Error* error) {
  return On(gpu, error, [&] { gpu->DestroyStream(stream); });
}
int StreamDone(MaypoleGpu* gpu, uint64_t stream, int32_t* done, Error* error) {
  return On(gpu, error, [&] { *done = gpu->StreamDone(stream) ? 1 : 0; });
}
int Synchronize(MaypoleGpu* gpu, uint64_t stream, Error* error) {
  return On(gpu, error, [&] { gpu->Synchronize(stream); });
}
int WriteValue(MaypoleGpu* gpu, uint64_t stream, uint64_t flag, uint64_t value,
               Error* error) {
  return On(gpu, error, [&] { gpu->WriteValue(stream, flag, value); });
}
int WaitValue(MaypoleGpu* gpu, uint64_t stream, uint64_t flag, uint64_t value,
              int32_t equal, Error* error) {
  return On(gpu, error,
            [&] { gpu->WaitValue(stream, flag, value, equal != 0); });
}
int Copy(MaypoleGpu* gpu, uint64_t stream, uint64_t to, uint64_t from,
         uint64_t bytes, Error* error) {
  return On(gpu, error, [&] { gpu->Copy(stream, to, from, bytes); });
}
int Fill(MaypoleGpu* gpu, uint64_t stream, uint64_t to, uint32_t word,
         uint64_t words, Error* error) {
  return On(gpu, error, [&] { gpu->Fill(stream, to, word, words); });
}

int Reduce(MaypoleGpu* gpu, uint64_t stream,
           const MaypoleGpuReduction* reduction, Error* error) {
  return On(gpu, error, [&] { gpu->Reduce(stream, *reduction); });
}
int Spin(MaypoleGpu* gpu, uint64_t stream, int32_t blocks, int64_t nanoseconds,
         Error* error) {
  return On(gpu, error, [&] { gpu->Spin(stream, blocks, nanoseconds); });
}
int KernelCopy(MaypoleGpu* gpu, uint64_t stream, uint64_t to, uint64_t from,
               uint64_t bytes, int32_t blocks, Error* error) {
  return On(gpu, error,
            [&] { gpu->KernelCopy(stream, to, from, bytes, blocks); });
}

int CreateEvent(MaypoleGpu* gpu, int32_t use, uint64_t* event, Error* error) {
  return On(gpu, error, [&] { *event = gpu->CreateEvent(use); });
}
int DestroyEvent(MaypoleGpu* gpu, uint64_t event, Error* error) {
  return On(gpu, error, [&] { gpu->DestroyEvent(event); });
}
int Record(MaypoleGpu* gpu, uint64_t event, uint64_t stream, Error* error) {
  return On(gpu, error, [&] { gpu->Record(event, stream); });
}
int WaitEvent(MaypoleGpu* gpu, uint64_t stream, uint64_t event, Error* error) {
  return On(gpu, error, [&] { gpu->WaitEvent(stream, event); });
}
int EventDone(MaypoleGpu* gpu, uint64_t event, int32_t* done, Error* error) {
  return On(gpu, error, [&] { *done = gpu->EventDone(event) ? 1 : 0; });
}
int Milliseconds(MaypoleGpu* gpu, uint64_t from, uint64_t to,
                 double* milliseconds, Error* error) {
  return On(gpu, error, [&] { *milliseconds = gpu->Milliseconds(from, to); });
}
int ExportEvent(MaypoleGpu* gpu, uint64_t event, uint8_t handle[64],
                Error* error) {
  return On(gpu, error, [&] { gpu->ExportEvent(event, handle); });
}
int ImportEvent(MaypoleGpu* gpu, const uint8_t handle[64], uint64_t* event,
                Error* error) {
  return On(gpu, error, [&] { *event = gpu->ImportEvent(handle); });
}

int MakeNcclId(MaypoleGpu* gpu, uint8_t id[128], Error* error) {
  return On(gpu, error, [&] { gpu->MakeNcclId(id); });
}
int JoinCommunicator(MaypoleGpu* gpu, const uint8_t id[128], int32_t size,
                     int32_t rank, uint64_t* communicator, Error* error) {
  return On(gpu, error,
            [&] { *communicator = gpu->JoinCommunicator(id, size, rank); });
}
int PollCommunicator(MaypoleGpu* gpu, uint64_t communicator,
                     int32_t* in_progress, Error* error) {
  return On(gpu, error, [&] {
    *in_progress = gpu->CommunicatorInProgress(communicator) ? 1 : 0;
  });
}
int AllReduce(MaypoleGpu* gpu, uint64_t communicator, uint64_t stream,
              uint64_t data, uint64_t elements, uint8_t dtype, Error* error) {
  return On(gpu, error, [&] {
    gpu->AllReduce(communicator, stream, data, elements, dtype);
  });
}
int AbortCommunicator(MaypoleGpu* gpu, uint64_t communicator, Error* error) {
  return On(gpu, error, [&] { gpu->AbortCommunicator(communicator); });
}

constexpr MaypoleGpuTable kTable = {
    .version = MAYPOLE_GPU_TABLE_VERSION,
    .bytes = sizeof(MaypoleGpuTable),
    .initialize = Initialize,
    .device_count = Count,
    .device_info = Info,
    .open = Open,
    .close = Close,
    .memory_room = Room,
    .allocate = Allocate,
    .export_memory = Export,
    .import_memory = Import,
    .free_memory = Free,
    .register_host = RegisterHost,
    .unregister_host = UnregisterHost,
    .create_stream = CreateStream,
    .destroy_stream = DestroyStream,
    .stream_done = StreamDone,
    .synchronize = Synchronize,
    .write_value = WriteValue,
    .wait_value = WaitValue,
    .copy = Copy,
    .fill = Fill,
    .reduce = Reduce,
    .spin = Spin,
    .kernel_copy = KernelCopy,
    .create_event = CreateEvent,
    .destroy_event = DestroyEvent,
    .record = Record,
    .wait_event = WaitEvent,
    .event_done = EventDone,
    .milliseconds = Milliseconds,
    .export_event = ExportEvent,
    .import_event = ImportEvent,
    .make_nccl_id = MakeNcclId,
    .join_communicator = JoinCommunicator,
    .poll_communicator = PollCommunicator,
    .all_reduce = AllReduce,
    .abort_communicator = AbortCommunicator,
};

}  // namespace
}  // namespace maypole::gpu::plugin

extern "C" __attribute__((visibility("default"))) const MaypoleGpuTable*
maypole_gpu_table(uint32_t version) {
  return version == MAYPOLE_GPU_TABLE_VERSION ? &maypole::gpu::plugin::kTable
                                              : nullptr;
}
