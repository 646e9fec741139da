// RunSpec: what the executor must know to execute one negotiated run. Made by
// the core from the coordinator's Execute and the signatures that the executor
// has reported itself; read by the board's writer and the network thread.
#ifndef MAYPOLE_WORKER_CORE_RUN_SPEC_H_
#define MAYPOLE_WORKER_CORE_RUN_SPEC_H_

#include <cstdint>
#include <vector>

#include "common/board.h"
#include "common/reduce.h"
#include "common/types.h"

namespace maypole::worker {

// Bytes of a run's space that one node's ranks have.
struct Block {
  uint32_t node = 0;
  uint64_t begin = 0;
  uint64_t end = 0;

  bool operator==(const Block&) const = default;
};

struct RunSpec {
  uint32_t record = 0;      // number of its Plan on the board
  uint32_t generation = 0;  // of the record
  uint64_t bytes = 0;       // of its space
  Kind kind = Kind::kBarrier;
  DType dtype = DType::kUint8;
  Finish finish;              // allreduce
  std::vector<Block> blocks;  // broadcast, allgather: who has what
  std::vector<PlanOperation> operations;
  std::vector<int64_t> first_dims;  // allgather, by global rank
  int64_t issued_ns = 0;            // by the shell's clock, for the metrics
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_RUN_SPEC_H_
