// FakeMemory: what one fake Gpu can address: its own memory, memory of others
// that it has imported, and registered memory of the host.
//
// Purpose: says whether an operation may touch a range, and by which bytes of
// this process; everything else is refused.
//
// Thread contract: none of its own: the scheduler's mutex is held.
//
// Invariants: a memfd of `bytes` and one page more, the label, is one memory;
// it is mapped where its Address says, without the label. Addresses of freed
// memory stay reserved, without access, so that a use of them is always known.
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

// A range that an operation may touch.
struct Piece {
  std::byte* data = nullptr;
  uint64_t bytes = 0;
  uint64_t memory = 0;  // 0: the host's
  uint64_t offset = 0;  // in that memory

  bool SameAs(const Piece& other) const {
    return data == other.data && bytes == other.bytes;
  }
  // Also if one memory is mapped twice.
  bool Overlaps(const Piece& other) const;
};

class FakeMemory {
 public:
  // Device memory comes in multiples of this, as on the devices of today.
  static constexpr uint64_t kGranularity = 2 << 20;

  FakeMemory(FakeLedger& ledger, uint64_t process, int device)
      : ledger_(ledger), process_(process), device_(device) {}
  ~FakeMemory();
  FakeMemory(const FakeMemory&) = delete;
  FakeMemory& operator=(const FakeMemory&) = delete;

  absl::StatusOr<Memory> Allocate(uint64_t bytes);
  absl::StatusOr<Fd> Export(Address address);
  absl::StatusOr<Memory> Import(int fd, uint64_t bytes);
  // Whether Free may be called; what it frees is not used any more.
  absl::Status CheckFree(Address address) const;
  absl::Status Free(Address address);
  absl::StatusOr<Address> RegisterHost(void* host, uint64_t bytes);
  absl::StatusOr<Piece> Registered(void* host) const;
  void UnregisterHost(void* host);

  // `what` is for the text: "the flag". alignment: of the address.
  absl::StatusOr<Piece> Find(const char* what, Address address, uint64_t bytes,
                             uint64_t alignment = 1) const;

  // All mappings of device memory lose their content and their access.
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
