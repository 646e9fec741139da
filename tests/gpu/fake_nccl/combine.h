// Combine: the arithmetic of NCCL's reductions.
//
// Purpose: with it the hub reduces what the ranks have sent.
//
//   Combine(ncclFloat32, ncclSum, {from_rank_0, from_rank_1}, count, to);
//
// Thread contract: pure functions.
//
// Invariants: the order is that of the ranks. 16-bit floats are accumulated in
// float32 and rounded once. As in NCCL, ncclAvg divides a sum of integers, and
// multiplies floats by the inverse number of ranks before it adds them.
#ifndef MAYPOLE_TESTS_GPU_FAKE_NCCL_COMBINE_H_
#define MAYPOLE_TESTS_GPU_FAKE_NCCL_COMBINE_H_

#include <cstddef>
#include <vector>

#include "tests/gpu/fake_nccl/nccl_api.h"

namespace maypole::nccl::fake {

size_t SizeOf(ncclDataType_t type);
const char* NameOf(ncclDataType_t type);
const char* NameOf(ncclRedOp_t op);

void Combine(ncclDataType_t type, ncclRedOp_t op,
             const std::vector<const std::byte*>& from, size_t count,
             std::byte* to);

}  // namespace maypole::nccl::fake

#endif  // MAYPOLE_TESTS_GPU_FAKE_NCCL_COMBINE_H_
