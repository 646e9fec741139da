// The room for the results of an allgather or alltoall on GPUs.
//
// Purpose: a rank reserves room for its result before it knows the sizes of the
// others' tensors. Where all ranks are on one node, the executor decides
// whether the operation can run on GPUs; over several nodes the coordinator
// does. Both use this rule.
//
// Thread contract: pure functions.
#ifndef MAYPOLE_COMMON_GATHER_ROOM_H_
#define MAYPOLE_COMMON_GATHER_ROOM_H_

#include <cstdint>
#include <span>

#include "common/types.h"

namespace maypole {

// The room to reserve for the result of a rank that submits `input` bytes, in a
// process set of `ranks` ranks, and whose last result of this name had `last`
// bytes.
uint64_t GatheredRoom(Kind kind, uint64_t input, int ranks, uint64_t last);

// True if there is anything to gather and each member's result fits in its
// room. `rooms`: bytes, by position in the process set of n ranks. `rows`:
// allgather: n numbers, what each rank has; alltoall: n x n, row i is what rank
// i sends to each rank. The caller has checked that none is negative and that
// they have at most kMaxTensorBytes for each member.
bool ResultsHaveRoom(Kind kind, uint64_t row_bytes,
                     std::span<const int64_t> rows,
                     std::span<const uint64_t> rooms);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_GATHER_ROOM_H_
