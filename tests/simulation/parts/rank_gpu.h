// SimulatedRankGpu: the GPU of a rank that calls NCCL itself, without a GPU.
//
// Purpose: keeps the promises of RankGpus (client/gpu/rank_gpus.h): runs begin
// in the order of Begin(). A run is executed when all ranks of its communicator
// have come to it: if two ranks came to their runs in different orders, they
// would wait for ever.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_TESTS_SIMULATION_PARTS_RANK_GPU_H_
#define MAYPOLE_TESTS_SIMULATION_PARTS_RANK_GPU_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "client/engine/operation.h"
#include "common/wire/session_messages.h"
#include "tests/simulation/stage.h"

namespace maypole::simulation {

class SimulatedRankGpu {
 public:
  // An operation's part of this rank.
  struct Part {
    Signature signature;
    int ranks = 0;  // of the process set
    GpuMemory memory;
    uint64_t offset = 0;

    std::byte* data() const { return memory->data() + offset; }
  };

  // changed: something to do for the rank's thread that drives.
  SimulatedRankGpu(Stage* stage, std::function<void()> changed)
      : stage_(stage), changed_(std::move(changed)) {}
  ~SimulatedRankGpu() { Leave(); }

  void Connect(const session::ConnectGpu& connect);
  std::shared_ptr<RankRun> Begin(uint32_t communicator,
                                 std::vector<Part> parts);
  // The epoch is over.
  void Abort();
  // A run waits for Connect().
  bool awaits_connect() const;

 private:
  class Run;
  struct Member {
    std::shared_ptr<SimulatedRankCommunicator> all;
    uint32_t rank = 0;
  };

  void BeginNext();
  void EndFirst();
  void Leave();
  static void Execute(Stage* stage, SimulatedRankCommunicator* all);

  Stage* const stage_;
  const std::function<void()> changed_;
  const std::shared_ptr<int> life_ = std::make_shared<int>();
  std::map<uint32_t, Member> members_;  // by communicator
  std::deque<std::shared_ptr<Run>> runs_;
  bool begun_ = false;  // the first of them
  bool aborted_ = false;
};

struct SimulatedRankCommunicator {
  uint32_t size = 0;
  // Ranks that have come to their next run.
  std::map<uint32_t /*NCCL rank*/, SimulatedRankGpu*> here;
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_PARTS_RANK_GPU_H_
