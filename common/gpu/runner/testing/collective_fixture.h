// CollectiveFixture: a GpuRunner on the fake driver with two GPUs and on the
// fake NCCL, with ranks in the process of the test.
//
//   class MyTest : public CollectiveFixture {};
//   TEST_F(MyTest, Adds) {
//     OpenRanks(/*per_gpu=*/2);                  // local ranks 0 to 3
//     Connect(1);
//     runner().Run(RunOf(1, OperationOf({.elements = 10}, /*slot=*/0, 0)));
//     EXPECT_TRUE(Ended(0).ok());
//   }
//
// Thread contract: see GpuRunnerFixture.
#ifndef MAYPOLE_COMMON_GPU_RUNNER_TESTING_COLLECTIVE_FIXTURE_H_
#define MAYPOLE_COMMON_GPU_RUNNER_TESTING_COLLECTIVE_FIXTURE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/gpu/runner/testing/gpu_runner_fixture.h"
#include "common/gpu/runner/testing/kind_cases.h"

namespace maypole {

class CollectiveFixture : public GpuRunnerFixture {
 protected:
  static constexpr uint32_t kGpus = 2;
  static constexpr uint64_t kBytes = 4 * kGranularity;  // of a rank
  static constexpr uint64_t kApart = 256 << 10;  // of two operations' tensors

  CollectiveFixture();
  void SetUp() override;
  void TearDown() override;

  // The executor's numbers of GPUs are the devices': local ranks from 0 on
  // device 0, the next on device 1.
  void OpenRanks(uint32_t per_gpu);
  // Makes only their memories.
  void MakeRanks(uint32_t per_gpu);
  uint32_t ranks() const { return static_cast<uint32_t>(memories_.size()); }
  RankMemory& memory(uint32_t local) { return memories_[local]; }

  // Connects both GPUs of this node, as NCCL ranks `first` and the next.
  void Connect(uint32_t number, const std::string& id, uint32_t size = kGpus,
               uint32_t first = 0);
  void Connect(uint32_t number) { Connect(number, *NewId(number)); }

  // The operation on the tensors of all ranks, at `place` * kApart.
  GpuOperation OperationOf(const Case& c, uint32_t slot, uint32_t place) const;
  // A broadcast from this member, of this node alone.
  GpuOperation BroadcastOf(uint64_t elements, uint32_t slot,
                           uint32_t root) const;
  // The operation of the members on this node. The tensor is at `place` *
  // kApart, its result kApart / 2 behind it.
  GpuOperation OperationOf(const KindCase& k, uint32_t slot,
                           uint32_t place) const;
  void WriteInputs(const KindCase& k, uint32_t place) const;
  void ExpectResults(const KindCase& k, uint32_t place) const;
  static GpuRun RunOf(uint32_t communicator, const GpuOperation& operation) {
    return {.communicator = communicator, .operations = {operation}};
  }

  Bytes Read(uint32_t local, uint32_t place, uint64_t bytes) const {
    return memories_[local].Read(place * kApart, bytes);
  }
  void Write(uint32_t local, uint32_t place, const Bytes& bytes) const {
    memories_[local].Write(place * kApart, bytes);
  }
  static Bytes Floats(float value, uint64_t elements);

  // How often the process has called the function of the fake NCCL so far.
  static uint64_t NcclCalls(const char* name);
  // Waits until runner() has done what was requested, except what must wait.
  void Settle();

  // This node has the ranks of the job from node_ * ranks() on.
  uint32_t node_ = 0;

  // Nothing is released: the test ends with NCCL stuck.
  bool leaks_ = false;

 private:
  uint32_t per_gpu() const { return ranks() / kGpus; }
  bool IsHere(uint32_t rank) const { return rank / ranks() == node_; }

  std::vector<RankMemory> memories_;
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_GPU_RUNNER_TESTING_COLLECTIVE_FIXTURE_H_
