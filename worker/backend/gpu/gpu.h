// Gpu: the part of CUDA and NCCL that Maypole uses.
//
// Purpose: the interface between code that runs collectives on device memory
// (executor, client library, probe) and the GPU. It is implemented by the
// plugin, which is opened at run time (loaded_gpu.h), and by a fake without a
// GPU (fake_gpu.h). A Gpu is one device as one process sees it: its context and
// the objects that the process has made in it.
//
//   auto driver = LoadDriver(path);               // StatusOr, as all below
//   auto gpu = (*driver)->Open(uuid);
//   auto memory = (*gpu)->Allocate(64 << 20);     // address, bytes
//   auto stream = (*gpu)->CreateStream();
//   (*gpu)->Copy(*stream, memory->address, other, 64 << 20);
//   (*gpu)->WriteValue(*stream, flag, 7);         // after the copy
//   (*gpu)->Done(*stream)                         // true: all has been done
//
// A call that takes a Stream only enqueues: the work is done after all work
// enqueued there before, and is visible to others after a flag, an event or
// Done() says so. Enqueued work cannot be cancelled. A stream that waits for a
// flag which is never written waits forever, even after its handle has been
// destroyed, and so does every call that waits for the device (see below).
// Therefore a program that makes a stream wait must keep a host address of the
// flag, and write all such flags before it aborts a communicator.
//
// Memory is allocated with CUDA's virtual memory management, so that it can be
// exported as a file descriptor (passed with SCM_RIGHTS) and written by other
// processes. It lives until its owner has freed it and no process maps it or
// holds a descriptor of it any more; a process releases everything when it
// ends.
//
// Thread contract: any thread; calls for the same stream or the same
// communicator must not overlap. Only these calls may wait for the device:
// Open, Synchronize, Free, UnregisterHost, DestroyStream, a Copy from host
// memory to host memory, and the calls with Communicator in their names.
//
// Errors: kUnavailable (no driver, no device, no NCCL), kResourceExhausted,
// kInvalidArgument (bad handle, address or size; nothing was done),
// kFailedPrecondition (memory that was freed or belongs to another process),
// kUnimplemented (not supported by the device), kAborted (communicator),
// kInternal (any other CUDA error: the context may be lost, and then all later
// calls fail, too). The text names the call, the device and CUDA's error.
#ifndef MAYPOLE_WORKER_BACKEND_GPU_GPU_H_
#define MAYPOLE_WORKER_BACKEND_GPU_GPU_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/system/fd.h"
#include "common/types.h"

namespace maypole::gpu {

// An address that kernels and copies of this process can use; 0 if none.
using Address = uint64_t;

// Handles of one Gpu; 0 means none. owned.h has RAII types.
struct Stream {
  uint64_t id = 0;
};
struct Event {
  uint64_t id = 0;
};
struct Communicator {
  uint64_t id = 0;
};

struct DeviceInfo {
  std::string uuid;  // "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
  std::string name;  // "NVIDIA H200"
  std::string bus_id;
  int compute_major = 0, compute_minor = 0;
  int multiprocessors = 0;
  int copy_engines = 0;
  uint64_t total_bytes = 0;
  bool exports_memory = false;  // VMM with POSIX file descriptors
  bool stream_flags = false;    // 64-bit WriteValue and WaitValue
};

struct Versions {
  int driver = 0;          // as CUDA counts: 13000 is 13.0
  int runtime = 0;         // of the plugin
  int nccl = 0;            // as NCCL counts: 22809 is 2.28.9; 0: no NCCL
  std::string nccl_error;  // why there is no NCCL
};

struct Memory {
  Address address = 0;
  uint64_t bytes = 0;  // rounded up to the device's granularity
};

// The condition on which WaitValue lets the stream continue. Values are
// compared by their signed difference, so that a sequence may wrap around.
enum class WaitFor : uint8_t { kAtLeast = 0, kEqual = 1 };

enum class EventUse : uint8_t { kTiming = 0, kOrder = 1, kInterprocess = 2 };
using EventHandle = std::array<std::byte, 64>;

// outputs[j][i] = scale * (inputs[0][i] op inputs[1][i] op ...), in this order;
// accumulated in float32 for float16 and bfloat16 and rounded once. An output
// may be one of the inputs; otherwise they do not overlap.
struct Reduction {
  std::span<const Address> inputs;   // 1 to kMaxReduced, aligned to 16 bytes
  std::span<const Address> outputs;  // likewise
  uint64_t elements = 0;
  DType dtype = DType::kFloat32;  // a float type
  Op op = Op::kSum;               // kSum, kMin, kMax
  double scale = 1.0;
};
inline constexpr size_t kMaxReduced = 16;

using NcclId = std::array<std::byte, 128>;

enum class CommunicatorState : uint8_t { kReady = 0, kInProgress = 1 };

class Gpu {
 public:
  virtual ~Gpu() = default;
  virtual const DeviceInfo& device() const = 0;

  // --- Memory ----------------------------------------------------------------
  // Free and total memory of the device, over all processes, as CUDA reports.
  struct Room {
    uint64_t free_bytes = 0;
    uint64_t total_bytes = 0;
  };
  virtual absl::StatusOr<Room> MemoryRoom() = 0;
  // Allocates memory that can be exported. Its content is undefined.
  virtual absl::StatusOr<Memory> Allocate(uint64_t bytes) = 0;
  // Returns a descriptor for Import in another process. `address` must be the
  // start of an allocation.
  virtual absl::StatusOr<Fd> Export(Address address) = 0;
  // Maps memory that another process has exported; `bytes` is its
  // Memory::bytes. The descriptor may be closed afterwards.
  virtual absl::StatusOr<Memory> Import(int fd, uint64_t bytes) = 0;
  // Undoes an Allocate or Import. Waits for all device work of this process, so
  // that no stream uses the memory any more.
  virtual absl::Status Free(Address address) = 0;
  // Lets the device read and write page-aligned host memory (for example, a
  // mapped memfd). The returned address is for WriteValue, WaitValue, Copy and
  // kernels.
  virtual absl::StatusOr<Address> RegisterHost(void* host, uint64_t bytes) = 0;
  virtual absl::Status UnregisterHost(void* host) = 0;

  // --- Streams ---------------------------------------------------------------
  virtual absl::StatusOr<Stream> CreateStream() = 0;
  virtual absl::Status DestroyStream(Stream stream) = 0;
  // Returns true if all enqueued work is done, and an error if it has failed.
  virtual absl::StatusOr<bool> Done(Stream stream) = 0;
  // Waits until all enqueued work is done; forever, if the stream waits for a
  // flag that is never written. Prefer Done().
  virtual absl::Status Synchronize(Stream stream) = 0;

  // flag: 8-byte aligned, in device or registered memory.
  virtual absl::Status WriteValue(Stream stream, Address flag,
                                  uint64_t value) = 0;
  virtual absl::Status WaitValue(Stream stream, Address flag, uint64_t value,
                                 WaitFor what = WaitFor::kAtLeast) = 0;
  // Copies between device and registered memory, by a copy engine if CUDA
  // chooses so.
  virtual absl::Status Copy(Stream stream, Address to, Address from,
                            uint64_t bytes) = 0;
  // Sets `words` 32-bit words.
  virtual absl::Status Fill(Stream stream, Address to, uint32_t word,
                            uint64_t words) = 0;

  // --- Kernels ---------------------------------------------------------------
  virtual absl::Status Reduce(Stream stream, const Reduction& reduction) = 0;
  // Keeps `blocks` blocks of one warp busy for this time, without memory
  // accesses.
  virtual absl::Status Spin(Stream stream, int blocks, int64_t nanoseconds) = 0;
  // Copies with a kernel of `blocks` blocks (0: as many as fit). Unlike Copy,
  // it always uses multiprocessors.
  virtual absl::Status KernelCopy(Stream stream, Address to, Address from,
                                  uint64_t bytes, int blocks) = 0;

  // --- Events ----------------------------------------------------------------
  virtual absl::StatusOr<Event> CreateEvent(EventUse use) = 0;
  virtual absl::Status DestroyEvent(Event event) = 0;
  virtual absl::Status Record(Event event, Stream stream) = 0;
  // Makes the stream wait for the last Record that was issued before this call,
  // if there was one.
  virtual absl::Status WaitEvent(Stream stream, Event event) = 0;
  virtual absl::StatusOr<bool> EventDone(Event event) = 0;
  // The time between two kTiming events that are done.
  virtual absl::StatusOr<double> Milliseconds(Event from, Event to) = 0;
  // For kInterprocess events, and other processes of this machine.
  virtual absl::StatusOr<EventHandle> ExportEvent(Event event) = 0;
  // The exporting process must live as long as the event is used.
  virtual absl::StatusOr<Event> ImportEvent(const EventHandle& handle) = 0;

  // --- NCCL ------------------------------------------------------------------
  virtual absl::StatusOr<NcclId> MakeNcclId() = 0;
  // Starts to join, without blocking: call PollCommunicator until it is ready.
  virtual absl::StatusOr<Communicator> JoinCommunicator(const NcclId& id,
                                                        int size, int rank) = 0;
  // Returns kInProgress while a call on it has not ended. After an error, abort
  // the communicator.
  virtual absl::StatusOr<CommunicatorState> PollCommunicator(
      Communicator communicator) = 0;
  // Sums in place. All members must make the same call. The communicator may be
  // in progress afterwards.
  virtual absl::Status AllReduce(Communicator communicator, Stream stream,
                                 Address data, uint64_t elements,
                                 DType dtype) = 0;
  // Ends the communicator in any state; its kernels stop waiting.
  virtual absl::Status AbortCommunicator(Communicator communicator) = 0;
};

// The GPUs that this process sees.
class Driver {
 public:
  virtual ~Driver() = default;
  virtual const Versions& versions() const = 0;
  virtual absl::StatusOr<std::vector<DeviceInfo>> Devices() = 0;
  // Creates, or shares, the process's context on that device.
  virtual absl::StatusOr<std::unique_ptr<Gpu>> Open(
      const std::string& uuid) = 0;
};

}  // namespace maypole::gpu

#endif  // MAYPOLE_WORKER_BACKEND_GPU_GPU_H_
