// Gpu: what Maypole needs of CUDA and NCCL, and no more.
//
// Purpose: the seam between whoever runs collectives on device memory
// (executor, client library, probe) and the GPU. Behind it stands the plugin
// that is opened at run time (loaded_gpu.h), or a fake without a GPU
// (fake_gpu.h). A Gpu is one device as one process sees it: its context, and
// what the process made in it.
//
//   auto driver = LoadDriver(path);               // StatusOr, as all below
//   auto gpu = (*driver)->Open(uuid);
//   auto memory = (*gpu)->Allocate(64 << 20);     // address, bytes
//   auto stream = (*gpu)->CreateStream();
//   (*gpu)->Copy(*stream, memory->address, other, 64 << 20);
//   (*gpu)->WriteValue(*stream, flag, 7);         // after the copy
//   (*gpu)->Done(*stream)                         // true: all has been done
//
// Everything that takes a Stream only enqueues: it is done after what was
// enqueued there before, and seen by others after a flag, an event or Done()
// says so. Nothing enqueued can be taken back; a stream that waits for a flag
// that nobody writes waits for ever, also when its handle has been destroyed,
// and with it all that waits for the device (below): whoever lets a stream wait
// keeps a host address of the flag, and releases all flags before it aborts a
// communicator.
//
// Memory is made by the virtual memory management calls of CUDA, so that it can
// be exported as a file descriptor (passed by SCM_RIGHTS) and written by other
// processes. It lives until its owner has freed it AND nobody maps it any more,
// or holds a descriptor of it; the end of a process counts as both.
//
// Thread contract: any thread; calls for one stream, or one communicator, one
// after the other. What may wait for the device: Open, Synchronize, Free,
// UnregisterHost, DestroyStream, a Copy between host memory and host memory,
// and the calls named Communicator; nothing else does.
//
// Errors: kUnavailable (no driver, no device, no NCCL), kResourceExhausted,
// kInvalidArgument (bad handle, address or size; nothing was done),
// kFailedPrecondition (freed before, foreign memory), kUnimplemented (the
// device cannot), kAborted (communicator), kInternal (anything else of CUDA's:
// the context may be lost, and with it all later calls fail alike). The text
// names the call, the device and CUDA's own word.
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

// An address that kernels and copies of this process can use. 0: none.
using Address = uint64_t;

// Handles of one Gpu; 0 is none. RAII: owned.h.
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
  int driver = 0;          // CUDA's numbers: 13000 is 13.0
  int runtime = 0;         // of the plugin
  int nccl = 0;            // NCCL's: 22809 is 2.28.9; 0: no NCCL
  std::string nccl_error;  // why there is none
};

struct Memory {
  Address address = 0;
  uint64_t bytes = 0;  // rounded up to the device's granularity
};

// When WaitValue lets the stream go on. Compared as signed differences, so that
// a sequence may wrap.
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
  // Device memory that nobody else uses, as CUDA says; others' included.
  struct Room {
    uint64_t free_bytes = 0;
    uint64_t total_bytes = 0;
  };
  virtual absl::StatusOr<Room> MemoryRoom() = 0;
  // Memory that can be exported. Its content is undefined.
  virtual absl::StatusOr<Memory> Allocate(uint64_t bytes) = 0;
  // A descriptor that another process Imports. `address` begins an allocation.
  virtual absl::StatusOr<Fd> Export(Address address) = 0;
  // Maps what another process exported; `bytes` is its Memory::bytes. The
  // descriptor may be closed afterwards.
  virtual absl::StatusOr<Memory> Import(int fd, uint64_t bytes) = 0;
  // Ends an Allocate or an Import, when all streams are done with it: waits for
  // the whole device work of this process.
  virtual absl::Status Free(Address address) = 0;
  // Lets the device read and write memory of the host, page-aligned (a mapping
  // of a memfd, for example). The address is for WriteValue, WaitValue, Copy
  // and kernels.
  virtual absl::StatusOr<Address> RegisterHost(void* host, uint64_t bytes) = 0;
  virtual absl::Status UnregisterHost(void* host) = 0;

  // --- Streams ---------------------------------------------------------------
  virtual absl::StatusOr<Stream> CreateStream() = 0;
  virtual absl::Status DestroyStream(Stream stream) = 0;
  // True: all that was enqueued is done. An error of the work is told here.
  virtual absl::StatusOr<bool> Done(Stream stream) = 0;
  // Waits for it. For ever, if the stream waits for a flag: prefer Done().
  virtual absl::Status Synchronize(Stream stream) = 0;

  // flag: 8-byte aligned, in device or registered memory.
  virtual absl::Status WriteValue(Stream stream, Address flag,
                                  uint64_t value) = 0;
  virtual absl::Status WaitValue(Stream stream, Address flag, uint64_t value,
                                 WaitFor what = WaitFor::kAtLeast) = 0;
  // From and to device or registered memory, by a copy engine if CUDA chooses.
  virtual absl::Status Copy(Stream stream, Address to, Address from,
                            uint64_t bytes) = 0;
  // Sets `words` 32-bit words.
  virtual absl::Status Fill(Stream stream, Address to, uint32_t word,
                            uint64_t words) = 0;

  // --- Kernels ---------------------------------------------------------------
  virtual absl::Status Reduce(Stream stream, const Reduction& reduction) = 0;
  // Keeps `blocks` blocks of one warp busy for so long, touching no memory.
  virtual absl::Status Spin(Stream stream, int blocks, int64_t nanoseconds) = 0;
  // Copies by a kernel that uses `blocks` blocks (0: as many as fit), so that
  // it needs multiprocessors where Copy may need none.
  virtual absl::Status KernelCopy(Stream stream, Address to, Address from,
                                  uint64_t bytes, int blocks) = 0;

  // --- Events ----------------------------------------------------------------
  virtual absl::StatusOr<Event> CreateEvent(EventUse use) = 0;
  virtual absl::Status DestroyEvent(Event event) = 0;
  virtual absl::Status Record(Event event, Stream stream) = 0;
  // The stream waits for the last Record that was issued before this call; for
  // none if there was none.
  virtual absl::Status WaitEvent(Stream stream, Event event) = 0;
  virtual absl::StatusOr<bool> EventDone(Event event) = 0;
  // Between two kTiming events that are done.
  virtual absl::StatusOr<double> Milliseconds(Event from, Event to) = 0;
  // kInterprocess events, for another process of this machine.
  virtual absl::StatusOr<EventHandle> ExportEvent(Event event) = 0;
  // The exporter outlives all use of it.
  virtual absl::StatusOr<Event> ImportEvent(const EventHandle& handle) = 0;

  // --- NCCL ------------------------------------------------------------------
  virtual absl::StatusOr<NcclId> MakeNcclId() = 0;
  // Begins to join (non-blocking): poll PollCommunicator until it is ready.
  virtual absl::StatusOr<Communicator> JoinCommunicator(const NcclId& id,
                                                        int size, int rank) = 0;
  // kInProgress: a call on it has not ended yet. An error: it is to be aborted.
  virtual absl::StatusOr<CommunicatorState> PollCommunicator(
      Communicator communicator) = 0;
  // Sum, in place. All members call it alike. May leave the communicator in
  // progress.
  virtual absl::Status AllReduce(Communicator communicator, Stream stream,
                                 Address data, uint64_t elements,
                                 DType dtype) = 0;
  // Ends it whatever its state: what its kernels wait for is given up.
  virtual absl::Status AbortCommunicator(Communicator communicator) = 0;
};

// The GPUs that this process sees.
class Driver {
 public:
  virtual ~Driver() = default;
  virtual const Versions& versions() const = 0;
  virtual absl::StatusOr<std::vector<DeviceInfo>> Devices() = 0;
  // Makes (or shares) the process's context on that device.
  virtual absl::StatusOr<std::unique_ptr<Gpu>> Open(
      const std::string& uuid) = 0;
};

}  // namespace maypole::gpu

#endif  // MAYPOLE_WORKER_BACKEND_GPU_GPU_H_
