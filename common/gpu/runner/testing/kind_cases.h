// KindCase: an operation of any kind over ranks of several nodes, and its
// expected result, computed on the host.
//
//   const KindCase k = MakeKind(Kind::kAllgather, {.ragged = true}, {0, 1, 2},
//                               /*seed=*/7);
//   Write(InputOf(k, 0));  ...
//   EXPECT_EQ(Read(), WantedOf(k, 0, /*per_gpu=*/2));
//
// Thread contract: values and pure functions.
#ifndef MAYPOLE_COMMON_GPU_RUNNER_TESTING_KIND_CASES_H_
#define MAYPOLE_COMMON_GPU_RUNNER_TESTING_KIND_CASES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/types.h"

namespace maypole {

using Bytes = std::vector<std::byte>;

struct Case {
  DType dtype = DType::kFloat32;
  Op op = Op::kSum;
  uint64_t elements = 1;
  double prescale = 1.0;
  int64_t divisor = 1;
  double postscale = 1.0;
};
// All types and operations that NCCL knows.
extern const std::vector<Case> kCases;

// Finite, of both signs and various sizes.
Bytes SomeValues(DType dtype, uint64_t elements, uint32_t seed);

// What the operation makes of `inputs`, by GPU: first each GPU's, then all.
Bytes OnCpu(const Case& c, const std::vector<std::vector<Bytes>>& inputs);

struct KindCase {
  Kind kind = Kind::kAllreduce;
  Case c;
  std::vector<uint64_t> counts;
  uint32_t root = 0;
  bool in_place = true;
  std::vector<uint32_t> ranks;  // of the job, on all nodes: the members
  uint32_t seed = 0;

  // Where member i's elements begin in all of a reducescatter's or allgather's.
  uint64_t StartOf(size_t i) const;
};

struct Shape {
  bool ragged = false;    // counts differ, some are 0
  bool in_place = false;  // unless the kind cannot
};
inline constexpr Shape kShapes[] = {
    {false, false}, {false, true}, {true, false}, {true, true}};
inline constexpr Kind kKindsOfGpus[] = {Kind::kAllreduce, Kind::kBroadcast,
                                        Kind::kReducescatter, Kind::kAllgather,
                                        Kind::kAlltoall};

// One of many, chosen by the seed.
KindCase MakeKind(Kind kind, const Shape& shape,
                  const std::vector<uint32_t>& ranks, uint32_t seed);

// Member i's tensor and result. Rank r is on GPU r / per_gpu.
Bytes InputOf(const KindCase& k, size_t i);
Bytes WantedOf(const KindCase& k, size_t i, uint32_t per_gpu);

// The numbers of the members' GPUs in a communicator of these alone.
std::vector<uint32_t> NcclRanksOf(const KindCase& k, uint32_t per_gpu);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_GPU_RUNNER_TESTING_KIND_CASES_H_
