// SimulatedRankGpu: the GPU of a rank that calls NCCL itself, without a GPU.
//
// Purpose: keeps the promises of RankGpus (client/gpu/rank_gpus.h): runs are
// put on the rank's stream, and begin, in the order of Begin(). A run is
// executed when all ranks of its communicator have reached it; two ranks that
// reach their runs in different orders would wait forever. Sometimes NCCL fails
// in a run that is on the stream, or reports that another rank is lost.
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
#include "common/gpu/runner/gpu_run.h"
#include "common/wire/session_messages.h"
#include "tests/simulation/parts/gpu_execution.h"
#include "tests/simulation/stage.h"

namespace maypole::simulation {

class SimulatedRankGpu {
 public:
  // What an error of NCCL says.
  static constexpr char kFailure[] = "NCCL error 3";
  static constexpr char kPeerIsLost[] = "remote error";

  // This rank's part of an operation. Without members of other ranks.
  struct Part {
    GpuOperation operation;
    GpuMemory memory;
    uint64_t offset = 0;
    uint64_t result = kInPlace;
  };

  // changed: something to do for the rank's thread that drives. may_fail: NCCL
  // may, though nobody has died.
  SimulatedRankGpu(Stage* stage, bool may_fail, std::function<void()> changed)
      : stage_(stage),
        may_fail_(may_fail),
        changed_(std::move(changed)),
        enqueue_(&stage->scheduler, [this] { EnqueueNext(); }) {}
  ~SimulatedRankGpu() { Leave(); }

  void Connect(const session::ConnectGpu& connect);
  std::shared_ptr<RankRun> Begin(uint32_t communicator,
                                 std::vector<Part> parts);
  // The epoch is over.
  void Abort();
  // A run waits for Connect().
  bool awaits_connect() const;
  // Runs that have not ended.
  uint32_t under_way() const { return static_cast<uint32_t>(runs_.size()); }

 private:
  class Run;
  struct Member {
    std::shared_ptr<SimulatedRankCommunicator> all;
    uint32_t rank = 0;
  };

  Run* NextToEnqueue() const;
  void EnqueueNext();
  void BeginNext();
  void EndFirst();
  void Fail(Code code, const char* text);
  void Leave();
  static void Execute(Stage* stage, SimulatedRankCommunicator* all);

  Stage* const stage_;
  const bool may_fail_;
  const std::function<void()> changed_;
  const std::shared_ptr<int> life_ = std::make_shared<int>();
  std::map<uint32_t, Member> members_;  // by communicator
  std::deque<std::shared_ptr<Run>> runs_;
  Turn enqueue_;
  bool begun_ = false;  // the first of them
  Status failure_;      // nothing begins any more
  bool aborted_ = false;
};

struct SimulatedRankCommunicator {
  uint32_t size = 0;
  // Ranks that have come to their next run.
  std::map<uint32_t /*NCCL rank*/, SimulatedRankGpu*> here;
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_PARTS_RANK_GPU_H_
