// GpuRunnerFixture: a GpuRunner on the fake driver, and ranks in the process of
// the test.
//
//   class MyTest : public GpuRunnerFixture {};
//   TEST_F(MyTest, Adds) {
//     RankMemory a = Create(kMiB2);
//     ASSERT_TRUE(OpenNow({0, 1}, a).ok());
//     runner().Run(SumOf({{0, 1}}, 16));
//     EXPECT_TRUE(Ended(0).ok());
//   }
//
// Thread contract: the test's thread calls everything; the runner's callbacks
// are recorded under a mutex.
//
// Invariants: at the end of a test the runner is destroyed, and everything that
// was requested from the driver must have been released.
#ifndef MAYPOLE_COMMON_GPU_RUNNER_TESTING_GPU_RUNNER_FIXTURE_H_
#define MAYPOLE_COMMON_GPU_RUNNER_TESTING_GPU_RUNNER_FIXTURE_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/gpu/runner/gpu_runner.h"
#include "common/gpu/runner/testing/driver_hooks.h"
#include "common/status.h"
#include "common/status_or.h"
#include "common/system/fd.h"
#include "tests/gpu/fake/fake_testing.h"

namespace maypole {

inline constexpr uint64_t kGranularity = 2 << 20;  // of the fake

// Memory that a rank has made (cuMemCreate), or a host buffer's copy of it.
struct RankMemory {
  cuda::CUmemGenericAllocationHandle handle = 0;
  cuda::CUdeviceptr address = 0;
  uint64_t bytes = 0;
  int device = 0;

  Fd Export() const;
  std::vector<std::byte> Read(uint64_t offset, size_t count) const;
  void Write(uint64_t offset, const std::vector<std::byte>& data) const;
};
RankMemory CreateRankMemory(uint64_t bytes, int device);
void DestroyRankMemory(const RankMemory& memory);

cuda::CUuuid UuidOf(int device);
session::GpuMemoryRequest RequestOf(session::GpuSharing sharing, uint64_t bytes,
                                    uint64_t proof, const cuda::CUuuid& uuid);

class GpuRunnerFixture : public cuda::fake::FakeTest {
 protected:
  using Opened = EpochGpus::Opened;
  static constexpr std::chrono::seconds kLong{20};

  void SetUp() override;
  void TearDown() override;

  GpuRunner& runner() { return *runner_; }
  void DestroyRunner() { runner_.reset(); }
  void NewRunner() {
    runner_ =
        std::make_unique<GpuRunner>(Recording(), nccl_library_, timeouts_);
  }
  static DriverHooks& hooks() { return DriverHooks::Get(); }

  // Destroyed at the end of the test.
  RankMemory Create(uint64_t bytes = kGranularity, int device = 0);

  // Open(), and what on_opened() said.
  StatusOr<Opened> OpenNow(GpuMemoryId id, const RankMemory& memory,
                           uint64_t proof = 1);
  StatusOr<Opened> OpenNow(GpuMemoryId id,
                           const session::GpuMemoryRequest& request,
                           Fd descriptor);
  StatusOr<Opened> Answer(GpuMemoryId id);
  bool Answered(GpuMemoryId id);

  // A sum of tensors at the beginning of the memories of GPU 0, with this slot.
  static GpuRun SumOf(const std::vector<GpuMemoryId>& memories,
                      uint64_t elements, uint32_t slot = 0);
  // What on_ended() said about the run whose first operation has the slot.
  Status Ended(uint32_t slot);
  bool HasEnded(uint32_t slot);
  std::vector<uint32_t> EndedSlots();  // in the order of the callbacks

  // What on_communicator_id() and on_abort_stuck() said.
  StatusOr<std::string> NewId(uint32_t number);
  std::vector<std::string> stuck();

  // For the next NewRunner().
  std::string nccl_library_;
  NcclTimeouts timeouts_;

  // False if the condition does not become true within kLong.
  static bool Becomes(const std::function<bool()>& condition);

 private:
  EpochGpus::Callbacks Recording();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<GpuMemoryId, StatusOr<Opened>> opened_;
  std::vector<std::pair<uint32_t, Status>> ended_;
  std::map<uint32_t, StatusOr<std::string>> ids_;
  std::vector<std::string> stuck_;
  std::vector<RankMemory> memories_;
  std::unique_ptr<GpuRunner> runner_;
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_GPU_RUNNER_TESTING_GPU_RUNNER_FIXTURE_H_
