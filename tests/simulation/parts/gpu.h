// SimulatedGpus: GPU memory and reductions of one executor, without a GPU.
//
// Purpose: keeps the promises of worker::EpochGpus: reductions of an executor
// take some time each and end in their order, and no callback follows the
// destruction. Some memories are refused, and some are on another GPU.
// GpuTensor is a rank's side: the tensor that lies in such a memory.
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
#include <vector>

#include "client/engine/operation.h"
#include "tests/simulation/ledger.h"
#include "tests/simulation/stage.h"
#include "worker/executor/executor_system.h"

namespace maypole::simulation {

inline constexpr uint64_t kGpuMemoryBytes = 64 << 10;

class SimulatedGpus : public worker::EpochGpus {
 public:
  SimulatedGpus(Stage* stage, Callbacks callbacks);

  void Open(worker::GpuMemoryId id, const session::GpuMemoryRequest& request,
            Fd memory) override;
  void Close(uint32_t local) override;
  void Reduce(worker::GpuReduction reduction) override;

 private:
  void EndNext();
  void Execute(const worker::GpuReduction& reduction);

  Stage* const stage_;
  const Callbacks callbacks_;
  const std::shared_ptr<int> life_ = std::make_shared<int>();
  std::map<worker::GpuMemoryId, GpuMemory> memories_;
  std::deque<worker::GpuReduction> running_;
  Turn turn_;
};

// The tensor of a rank's operation, at `offset` of the memory.
class GpuTensor : public StagedTensor {
 public:
  // on_host: something to do for the rank's thread that drives.
  GpuTensor(Stage* stage, Scheduler::Owner life, GpuMemory memory,
            uint64_t offset, Record* record, std::function<void()> on_host)
      : stage_(stage),
        life_(std::move(life)),
        memory_(std::move(memory)),
        offset_(offset),
        record_(record),
        on_host_(std::move(on_host)) {}

  // The input is written, as by the rank's stream.
  void WriteInput();
  std::byte* GatherInto(uint64_t) override { return nullptr; }
  Status BringToHost(Operation* operation, bool* done) override;
  void ReducedOnGpu() override;

 private:
  std::vector<std::byte>& GiveMemory(Operation* operation);

  Stage* const stage_;
  const Scheduler::Owner life_;  // of the rank's process
  const GpuMemory memory_;
  const uint64_t offset_;
  Record* const record_;
  const std::function<void()> on_host_;
  bool copying_ = false;
  bool copied_ = false;
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_PARTS_GPU_H_
