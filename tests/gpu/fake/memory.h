// FakeMemory: the memory that one process can address on its fake GPUs, and the
// host memory that it has registered.
//
// Purpose: says what an address is and where its bytes are. Device memory is a
// memfd, so other processes can map it as well.
//
//      CUdeviceptr range                    alias range
//      no access: the host crashes          read-write: streams and kernels
//      [ reservation            ]           [ reservation.host       ]
//           [ region ]            -------->      [ region.host ]   (the memfd)
//
//   auto backing =
//       Backing::Create(state, limit, 0, bytes, Backing::kAllocation);
//   CUdeviceptr address =
//       memory.MapNew({.kind = MemoryKind::kAllocated, ...});
//   memory.Where(address + 8, 16).data    // of kind Place::kKnown
//
// Thread contract: the caller serialises the calls.
//
// Invariants: regions do not overlap. Freed ranges stay reserved without
// access, so that every later use of their addresses is noticed.
#ifndef MAYPOLE_TESTS_GPU_FAKE_MEMORY_H_
#define MAYPOLE_TESTS_GPU_FAKE_MEMORY_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "common/gpu/cuda_types.h"
#include "common/system/fd.h"
#include "tests/gpu/fake/shared_state.h"

namespace maypole::cuda::fake {

inline constexpr size_t kGranularity = 2 << 20;  // of shareable memory

// Physical memory of a GPU.
class Backing {
 public:
  enum Use { kAllocation, kShareable };  // cuMemAlloc's, cuMemCreate's

  // Null if the GPU has not so much memory left. The state must outlive it.
  static std::shared_ptr<Backing> Create(SharedState& state, uint64_t limit,
                                         int gpu, size_t bytes, Use use);
  // Null if the descriptor is not memory that a Create() of this use made.
  static std::shared_ptr<Backing> Open(Fd fd, Use use);
  ~Backing();
  Backing(const Backing&) = delete;
  Backing& operator=(const Backing&) = delete;

  int fd() const { return fd_.get(); }
  int gpu() const { return gpu_; }  // of the machine, not of the process
  size_t bytes() const { return bytes_; }
  ino_t identity() const { return identity_; }  // equal in all processes

 private:
  Backing(Fd fd, int gpu, size_t bytes);

  const Fd fd_;
  const int gpu_;
  const size_t bytes_;
  ino_t identity_ = 0;
  SharedState* state_ = nullptr;  // where it counts; null if opened
};

enum class MemoryKind { kAllocated, kOpened, kMapped, kPinned, kRegistered };

struct Region {
  MemoryKind kind;
  int device;  // of the process
  size_t bytes;
  std::byte* host = nullptr;  // set by Map() for device memory
  bool accessible = true;
  int opened = 1;  // how often cuIpcOpenMemHandle has returned it
  std::shared_ptr<Backing> backing = nullptr;

  bool on_host() const { return backing == nullptr; }
};

// What an access to a range would meet.
struct Place {
  enum Kind { kKnown, kPageable, kWrong } kind;
  std::byte* data = nullptr;
};

class FakeMemory {
 public:
  using Regions = std::map<CUdeviceptr, Region>;

  // Reserves a range, with its alias. 0 if there is no address space left.
  CUdeviceptr Reserve(size_t bytes, size_t alignment);
  bool IsReserved(CUdeviceptr address, size_t bytes) const;
  // The range must be a reservation; false if not. It is never used again.
  bool Retire(CUdeviceptr address, size_t bytes);

  // The region's range must be free: in a reservation, or of the host.
  bool Map(CUdeviceptr address, Region region);
  // Reserves and maps a region of device memory.
  CUdeviceptr MapNew(Region region);
  void Unmap(Regions::iterator region);
  // Also retires the reservation that MapNew() made.
  void UnmapNew(Regions::iterator region);

  Place Where(CUdeviceptr address, size_t bytes);
  // The region that contains the address; regions().end() if there is none.
  Regions::iterator Containing(CUdeviceptr address);
  bool Overlaps(CUdeviceptr address, size_t bytes);
  Regions& regions() { return regions_; }

 private:
  struct Reservation {
    size_t bytes;
    std::byte* host;
    bool retired = false;
  };
  const Reservation* Reserved(CUdeviceptr address, CUdeviceptr* start) const;

  Regions regions_;
  std::map<CUdeviceptr, Reservation> reservations_;
};

}  // namespace maypole::cuda::fake

#endif  // MAYPOLE_TESTS_GPU_FAKE_MEMORY_H_
