// FakeMemory: the memory that one fake Gpu can address: its own, imported
// memory of other processes, and registered host memory.
//
// Purpose: checks whether an operation may access a range, and finds its bytes
// in this process.
//
// Thread contract: the caller must hold the scheduler's mutex.
//
// Invariants: each memory is a memfd of `bytes` and one more page, the label;
// it is mapped, without the label, at its Address. Addresses of freed memory
// stay reserved without access, so that every use of them is noticed.
#ifndef MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_MEMORY_H_
#define MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/system/fd.h"
#include "worker/backend/gpu/gpu.h"
#include "worker/backend/gpu/testing/fake_ledger.h"

namespace maypole::gpu {

// A range that an operation may access.
struct Piece {
  std::byte* data = nullptr;
  uint64_t bytes = 0;
  uint64_t memory = 0;  // 0: the host's
  uint64_t offset = 0;  // in that memory

  bool SameAs(const Piece& other) const {
    return data == other.data && bytes == other.bytes;
  }
  // Also detects overlaps through two mappings of one memory.
  bool Overlaps(const Piece& other) const;
};

class FakeMemory {
 public:
  // Device memory is allocated in multiples of this, as on current devices.
  static constexpr uint64_t kGranularity = 2 << 20;

  FakeMemory(FakeLedger& ledger, uint64_t process, int device)
      : ledger_(ledger), process_(process), device_(device) {}
  ~FakeMemory();
  FakeMemory(const FakeMemory&) = delete;
  FakeMemory& operator=(const FakeMemory&) = delete;

  absl::StatusOr<Memory> Allocate(uint64_t bytes);
  absl::StatusOr<Fd> Export(Address address);
  absl::StatusOr<Memory> Import(int fd, uint64_t bytes);
  // Returns whether Free may be called, once the memory is no longer used.
  absl::Status CheckFree(Address address) const;
  absl::Status Free(Address address);
  absl::StatusOr<Address> RegisterHost(void* host, uint64_t bytes);
  absl::StatusOr<Piece> Registered(void* host) const;
  void UnregisterHost(void* host);

  // `what`, for example "flag", is for error texts. The address must be a
  // multiple of `alignment`.
  absl::StatusOr<Piece> Find(const char* what, Address address, uint64_t bytes,
                             uint64_t alignment = 1) const;

  // Removes content and access of all mappings of device memory.
  void Vanish();

 private:
  enum class Kind { kOwn, kImported, kHost, kFreed };
  struct Region {
    Kind kind;
    uint64_t bytes;
    uint64_t memory = 0;
    Fd fd = {};            // of kOwn
    Mapping mapping = {};  // not of kHost
  };
  using Regions = std::map<Address, Region>;

  absl::StatusOr<Memory> Map(Kind kind, uint64_t memory, uint64_t bytes,
                             int fd);
  static absl::Status TakeAccess(Region& region);
  Regions::const_iterator Containing(Address address) const;

  FakeLedger& ledger_;
  const uint64_t process_;
  const int device_;
  Regions regions_;  // by their first address; they do not overlap
};

}  // namespace maypole::gpu

#endif  // MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_MEMORY_H_
