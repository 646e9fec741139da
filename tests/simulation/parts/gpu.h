// SimulatedGpus: GPU memory and operations of one executor, without a GPU.
//
// Purpose: keeps the promises of EpochGpus: runs of an executor take some time
// each and end in their order, and no callback follows the destruction. A run
// with a communicator begins when all its nodes have reached it; two nodes that
// reach runs in different orders would wait forever. Some memories are refused,
// and some are on another GPU. GpuTensor is a rank's side: the tensor in such a
// memory.
//
// Thread contract: not synchronized. Events call the callbacks.
#ifndef MAYPOLE_TESTS_SIMULATION_PARTS_GPU_H_
#define MAYPOLE_TESTS_SIMULATION_PARTS_GPU_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/engine/operation.h"
#include "common/board/board.h"
#include "common/status.h"
#include "tests/simulation/ledger.h"
#include "tests/simulation/parts/gpu_execution.h"
#include "tests/simulation/parts/rank_gpu.h"
#include "tests/simulation/stage.h"
#include "worker/executor/executor_system.h"

namespace maypole::simulation {

inline constexpr uint64_t kGpuMemoryBytes = 256 << 10;

class SimulatedGpus : public EpochGpus {
 public:
  SimulatedGpus(Stage* stage, Callbacks callbacks);
  ~SimulatedGpus() override;

  void Open(GpuMemoryId id, const session::GpuMemoryRequest& request,
            Fd memory) override;
  void Close(uint32_t local) override;
  void MakeCommunicatorId(uint32_t number) override;
  void Connect(GpuCommunicator communicator, std::string id) override;
  void Run(GpuRun run) override;
  void Abort() override;

 private:
  struct Member {
    uint32_t gpus = 0;
    std::shared_ptr<SimulatedCommunicator> all;
    uint32_t first = 0;  // NCCL rank
  };

  void EndNext();
  // The first of together_ begins, or waits for the other nodes.
  void BeginTogether();
  void EndTogether(Status status);
  void Leave();
  bool AreOpen(const GpuRun& run) const;
  NodePart PartOf(const GpuOperation& operation) const;
  static void ExecuteTogether(Stage* stage, SimulatedCommunicator* all);

  Stage* const stage_;
  const Callbacks callbacks_;
  const std::shared_ptr<int> life_ = std::make_shared<int>();
  std::map<GpuMemoryId, GpuMemory> memories_;
  std::map<uint32_t, Member> members_;  // by communicator
  std::deque<GpuRun> running_;
  std::deque<GpuRun> together_;  // with a communicator
  bool begun_ = false;           // the first of together_
  bool aborted_ = false;
  Turn turn_;
};

// The GPUs of several executors.
struct SimulatedCommunicator {
  uint32_t size = 0;
  uint32_t connected = 0;  // GPUs
  // Executors that have come to their next run.
  std::map<uint32_t /*NCCL rank*/, SimulatedGpus*> here;
  uint32_t gpus_here = 0;
};

// The tensor of a rank's operation, at `offset` of the memory.
class GpuTensor : public StagedTensor {
 public:
  // on_host: something to do for the rank's thread that drives.
  GpuTensor(Stage* stage, Scheduler::Owner life, GpuMemory memory,
            uint64_t offset, Record* record, SimulatedRankGpu* rank_gpu,
            std::function<void()> on_host)
      : stage_(stage),
        life_(std::move(life)),
        memory_(std::move(memory)),
        offset_(offset),
        record_(record),
        rank_gpu_(rank_gpu),
        on_host_(std::move(on_host)) {}

  // The input is written, as by the rank's stream.
  void WriteInput();
  std::byte* GatherInto(uint64_t) override { return nullptr; }
  Status BringToHost(Operation* operation, bool* done) override;
  void ResultOnGpu(uint64_t offset) override;
  std::shared_ptr<RankRun> BeginOnRank(
      const RankPart& part, const std::vector<Operation*>& operations) override;
  // Of an operation that has ended well: false while the user must wait for its
  // result. An error: there is none.
  bool Fetch(const Board& board, Status* error);
  // This rank's own GPU executes it.
  bool runs_here() const { return run_ != nullptr; }

 private:
  bool HasInput() const;
  SimulatedRankGpu::Part PartOf(const RankPart& part);
  void CopyResult(uint64_t offset);
  std::vector<std::byte>& GiveMemory(Operation* operation);

  Stage* const stage_;
  const Scheduler::Owner life_;  // of the rank's process
  const GpuMemory memory_;
  const uint64_t offset_;
  Record* const record_;
  SimulatedRankGpu* const rank_gpu_;  // null: the rank calls no NCCL
  const std::function<void()> on_host_;
  bool copying_ = false;
  bool copied_ = false;
  std::shared_ptr<RankRun> run_;
  uint64_t result_at_ = 0;  // of run_
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_PARTS_GPU_H_
