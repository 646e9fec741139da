// Staging: registered host memory through which patterns go to the device, and
// results come back to be checked.
//
//   auto staging = Staging::Create(gpu);
//   staging->Put(stream, memory, {DType::kFloat32, rank}, elements);
//   ... Reduce, AllReduce ...
//   auto check = staging->Check(stream, memory, DType::kFloat32, seeds,
//                               elements);
//
// Thread contract: one thread. Every call waits until its stream is done, for
// kCopyTimeout at most: never call it for a stream that waits for a flag.
#ifndef MAYPOLE_TESTS_GPU_PROBE_FACTS_STAGING_H_
#define MAYPOLE_TESTS_GPU_PROBE_FACTS_STAGING_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/gpu/probe/lab/lab.h"
#include "tests/gpu/probe/lab/samples.h"
#include "worker/backend/gpu/gpu.h"
#include "worker/backend/gpu/owned.h"

namespace maypole::probe {

inline constexpr Duration kCopyTimeout = Seconds(20);

class Staging {
 public:
  static constexpr uint64_t kBytes = 8 << 20;

  static absl::StatusOr<Staging> Create(gpu::Gpu& gpu);

  // Fills `elements` of device memory with the pattern.
  absl::Status Put(gpu::Stream stream, gpu::Address to, const Pattern& pattern,
                   uint64_t elements);
  // At most kBytes.
  absl::StatusOr<std::vector<std::byte>> Get(gpu::Stream stream,
                                             gpu::Address from, uint64_t bytes);
  // Compares samples of the sum of the patterns of `seeds` (samples.h).
  absl::StatusOr<SumCheck> Check(gpu::Stream stream, gpu::Address at,
                                 DType dtype, std::span<const uint64_t> seeds,
                                 uint64_t elements);
  // Whether all these 32-bit words have this value.
  absl::StatusOr<bool> Holds(gpu::Stream stream, gpu::Address at, uint32_t word,
                             uint64_t words);

 private:
  gpu::Gpu* gpu_ = nullptr;
  SharedMemory memory_;
  gpu::HostRegistration registered_;  // ends before the memory does
};

}  // namespace maypole::probe

#endif  // MAYPOLE_TESTS_GPU_PROBE_FACTS_STAGING_H_
