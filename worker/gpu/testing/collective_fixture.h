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
// Thread contract: as GpuRunnerFixture.
#ifndef MAYPOLE_WORKER_GPU_TESTING_COLLECTIVE_FIXTURE_H_
#define MAYPOLE_WORKER_GPU_TESTING_COLLECTIVE_FIXTURE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/types.h"
#include "worker/gpu/testing/gpu_runner_fixture.h"

namespace maypole::worker {

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
  uint32_t ranks() const { return static_cast<uint32_t>(memories_.size()); }
  RankMemory& memory(uint32_t local) { return memories_[local]; }

  // Connects both GPUs of this node, as NCCL ranks `first` and the next.
  void Connect(uint32_t number, const std::string& id, uint32_t size = kGpus,
               uint32_t first = 0);
  void Connect(uint32_t number) { Connect(number, *NewId(number)); }

  // The operation on the tensors of all ranks, at `place` * kApart.
  GpuOperation OperationOf(const Case& c, uint32_t slot, uint32_t place) const;
  GpuOperation BroadcastOf(uint64_t elements, uint32_t slot, uint32_t root,
                           uint32_t root_local) const;
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
  // Waits until runner() has done what it was asked for, unless it must wait
  // with that.
  void Settle();

  // Nothing is given back: the test ends with NCCL being stuck.
  bool leaks_ = false;

 private:
  std::vector<RankMemory> memories_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_GPU_TESTING_COLLECTIVE_FIXTURE_H_
