// MaypoleGpu: one device in this process, with all that was made on it.
//
// Purpose: the object behind the table's handle. Its methods are implemented in
// memory.cc, streams.cc, events.cc, communicators.cc and launch.cc; each is a
// function of the table and does what the gpu.h method of that name does.
//
//   MaypoleGpu gpu(0);
//   Current current(gpu);             // in every call, see below
//   const uint64_t stream = gpu.CreateStream();
//   gpu.Copy(stream, to, from, bytes);
//
// Thread contract: as gpu.h's. The calling thread must have a Current of this
// gpu, except in the constructor and the destructor.
//
// Invariants: the destructor leaves objects that still exist to the end of the
// process, because releasing them could wait forever.
#ifndef MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_DEVICE_H_
#define MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_DEVICE_H_

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>

#include "worker/backend/gpu/plugin/allocation.h"
#include "worker/backend/gpu/plugin/cuda_failure.h"
#include "worker/backend/gpu/plugin/handles.h"
#include "worker/backend/gpu/plugin/libraries.h"
#include "worker/backend/gpu/plugin_abi.h"

namespace maypole::gpu::plugin {

int DeviceCount();
MaypoleGpuDeviceInfo InfoOfDevice(int index);

// Holds the device's primary context, which is shared with the CUDA runtime and
// all other users of CUDA in this process.
class PrimaryContext {
 public:
  // Runtime and driver number the devices alike: CUDA_VISIBLE_DEVICES applies
  // to both.
  PrimaryContext(const DriverApi& driver, int index);
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;
  ~PrimaryContext();
  CUcontext get() const { return context_; }
  CUdevice device() const { return device_; }

 private:
  const DriverApi& driver_;
  const CUdevice device_;
  CUcontext context_ = nullptr;
};

struct EventEntry {
  cudaEvent_t event = nullptr;
  int use = 0;  // gpu.h: EventUse; events.cc
};

}  // namespace maypole::gpu::plugin

// Outside of the namespace, because it is the table's handle type.
struct MaypoleGpu {
 public:
  explicit MaypoleGpu(int index);
  MaypoleGpu(const MaypoleGpu&) = delete;
  MaypoleGpu& operator=(const MaypoleGpu&) = delete;
  ~MaypoleGpu();

  // ", on GPU 0 (NVIDIA H200)", which ends error texts.
  const std::string& where() const { return where_; }
  CUcontext context() const { return primary_.get(); }
  const maypole::gpu::plugin::DriverApi& driver() const { return driver_; }

  void MemoryRoom(uint64_t* free, uint64_t* total);
  // *bytes is the wanted size; on return, the size after rounding up.
  uint64_t Allocate(uint64_t* bytes);
  int Export(uint64_t address);
  uint64_t Import(int fd, uint64_t bytes);
  void Free(uint64_t address);
  uint64_t RegisterHost(void* host, uint64_t bytes);
  void UnregisterHost(void* host);

  uint64_t CreateStream();
  void DestroyStream(uint64_t stream);
  bool StreamDone(uint64_t stream);
  void Synchronize(uint64_t stream);
  void WriteValue(uint64_t stream, uint64_t flag, uint64_t value);
  void WaitValue(uint64_t stream, uint64_t flag, uint64_t value, bool equal);
  void Copy(uint64_t stream, uint64_t to, uint64_t from, uint64_t bytes);
  void Fill(uint64_t stream, uint64_t to, uint32_t word, uint64_t words);

  void Reduce(uint64_t stream, const MaypoleGpuReduction& reduction);
  void Spin(uint64_t stream, int32_t blocks, int64_t nanoseconds);
  void KernelCopy(uint64_t stream, uint64_t to, uint64_t from, uint64_t bytes,
                  int32_t blocks);

  uint64_t CreateEvent(int use);
  void DestroyEvent(uint64_t event);
  void Record(uint64_t event, uint64_t stream);
  void WaitEvent(uint64_t stream, uint64_t event);
  bool EventDone(uint64_t event);
  double Milliseconds(uint64_t from, uint64_t to);
  void ExportEvent(uint64_t event, uint8_t handle[64]);
  uint64_t ImportEvent(const uint8_t handle[64]);

  void MakeNcclId(uint8_t id[128]);
  uint64_t JoinCommunicator(const uint8_t id[128], int size, int rank);
  bool CommunicatorInProgress(uint64_t communicator);
  void AllReduce(uint64_t communicator, uint64_t stream, uint64_t data,
                 uint64_t elements, uint8_t dtype);
  void AbortCommunicator(uint64_t communicator);

 private:
  uint64_t Keep(maypole::gpu::plugin::Allocation allocation);
  // Loads all kernels now. CUDA would otherwise load a kernel at its first
  // launch and wait for the context's running work, which may itself wait for
  // that kernel.
  void LoadKernels();
  void LoadDriversKernels();
  // Returns how many blocks of kThreads threads of this kernel run on the
  // device at the same time.
  int BlocksThatFit(const void* kernel);
  void Launch(uint64_t stream, const void* kernel, uint64_t blocks, int threads,
              void* argument);
  void CheckStreamFlags(uint64_t flag) const;
  // Returns whether the communicator is in progress; throws its error.
  bool InProgress(ncclComm_t communicator) const;

  const maypole::gpu::plugin::DriverApi& driver_;
  const maypole::gpu::plugin::PrimaryContext primary_;
  std::string where_;
  int multiprocessors_ = 0;
  bool exports_memory_ = false;
  bool stream_flags_ = false;
  size_t granularity_ = 0;  // of allocations, bytes; if exports_memory_

  std::mutex mutex_;  // guards what follows
  std::map<uint64_t, maypole::gpu::plugin::Allocation> allocations_;
  std::set<void*> registrations_;  // host memory
  std::unordered_map<const void*, int> blocks_that_fit_;

  maypole::gpu::plugin::Handles<cudaStream_t> streams_{"stream"};
  maypole::gpu::plugin::Handles<maypole::gpu::plugin::EventEntry> events_{
      "event"};
  maypole::gpu::plugin::Handles<ncclComm_t> communicators_{"communicator"};
};

namespace maypole::gpu::plugin {

// Makes the device's primary context current in the calling thread as long as
// this object lives, then restores the previous one: CUDA calls use the current
// context, and the thread belongs to the application.
class Current {
 public:
  explicit Current(const MaypoleGpu& gpu) : driver_(gpu.driver()) {
    Check(driver_.ctx_push(gpu.context()), "cuCtxPushCurrent");
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  ~Current() {
    CUcontext ours = nullptr;
    driver_.ctx_pop(&ours);
  }

 private:
  const DriverApi& driver_;
};

}  // namespace maypole::gpu::plugin

#endif  // MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_DEVICE_H_
