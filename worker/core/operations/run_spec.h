// RunSpec: what the executor needs to execute one negotiated run.
//
// Purpose: the core makes it from the coordinator's Execute and the executor's
// own copy of the signatures; BoardKeeper and the network thread read it.
//
// Thread contract: values.
#ifndef MAYPOLE_WORKER_CORE_OPERATIONS_RUN_SPEC_H_
#define MAYPOLE_WORKER_CORE_OPERATIONS_RUN_SPEC_H_

#include <cstdint>
#include <vector>

#include "common/board/board.h"
#include "common/reduce/reduce.h"
#include "common/types.h"

namespace maypole::worker {

inline constexpr uint32_t kAllNodes = UINT32_MAX;

// Bytes of a run's byte space that the ranks of node `from` have and the ranks
// of node `to` need.
struct NodeBlock {
  uint32_t from = 0;
  uint32_t to = kAllNodes;  // all nodes of the run
  uint64_t begin = 0;
  uint64_t end = 0;

  bool operator==(const NodeBlock&) const = default;
};

struct RunSpec {
  bool reduces() const { return Reduces(kind); }

  uint32_t record = 0;      // number of its Plan on the board
  uint32_t generation = 0;  // of the record
  RunSite site = RunSite::kHost;
  uint32_t communicator = 0;  // RunSite::kRanks: its number in the epoch
  uint64_t bytes = 0;         // of its byte space
  uint64_t tensor_bytes = 0;  // `bytes` without the gaps
  Kind kind = Kind::kBarrier;
  DType dtype = DType::kUint8;
  Op op = Op::kSum;             // allreduce, reducescatter
  Epilogue finish;              // of the nodes' parts, likewise
  uint64_t members = 0;         // local ranks of its process set, as a mask
  std::vector<uint32_t> nodes;  // of its process set, ascending
  // Broadcast, allgather: which node has which bytes. Alltoall: what this node
  // sends or receives. Reducescatter: which node needs which bytes (`from` is
  // unused). The blocks ascend and do not overlap.
  std::vector<NodeBlock> blocks;
  std::vector<PlanOperation> operations;
  std::vector<int64_t> first_dims;  // allgather, by global rank
  std::vector<int64_t> splits;      // alltoall: row i is what rank i sends
  uint32_t matrix = 0;              // the board's place for `splits`
  int64_t issued_ns = 0;            // by the shell's clock, for the metrics
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_OPERATIONS_RUN_SPEC_H_
