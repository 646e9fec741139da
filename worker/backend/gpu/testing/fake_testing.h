// Helpers for the tests of the fake GPUs: processes of one fake machine.
#ifndef MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_TESTING_H_
#define MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_TESTING_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "worker/backend/gpu/testing/fake_gpu.h"

namespace maypole::gpu {

inline const absl::Status& StatusOf(const absl::Status& status) {
  return status;
}
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

#define EXPECT_OK(call)                             \
  do {                                              \
    const auto& outcome = (call);                   \
    EXPECT_TRUE(outcome.ok()) << StatusOf(outcome); \
  } while (false)

// Expects that the call fails with this code and a text that contains `words`.
#define EXPECT_REFUSED(call, expected, words)                                \
  do {                                                                       \
    const absl::Status refusal = StatusOf(call);                             \
    EXPECT_EQ(refusal.code(), absl::StatusCode::expected) << refusal;        \
    EXPECT_NE(std::string(refusal.message()).find(words), std::string::npos) \
        << refusal;                                                          \
  } while (false)

inline constexpr uint64_t kMiB = 1 << 20;

template <typename T>
T* At(Address address) {
  return reinterpret_cast<T*>(address);
}

// A process with one Gpu and one stream.
struct TestProcess {
  explicit TestProcess(std::shared_ptr<FakeMachine> machine, int device = 0)
      : driver(FakeDriver::Create(std::move(machine)).value()),
        gpu(driver->Open(FakeMachine::Uuid(device)).value()),
        stream(gpu->CreateStream().value()) {}
  Address Allocate(uint64_t bytes = 2 * kMiB) {
    return gpu->Allocate(bytes).value().address;
  }
  // The same memory in another process.
  Address ImportedFrom(TestProcess& owner, Address address, uint64_t bytes) {
    const Fd fd = owner.gpu->Export(address).value();
    return gpu->Import(fd.get(), bytes).value().address;
  }
  uint64_t Taken() {
    const Gpu::Room room = gpu->MemoryRoom().value();
    return room.total_bytes - room.free_bytes;
  }

  std::unique_ptr<FakeDriver> driver;
  std::unique_ptr<Gpu> gpu;
  Stream stream;
};

inline std::shared_ptr<FakeMachine> Stepped(uint64_t seed = 1) {
  return FakeMachine::Create(
             {.mode = FakeMachine::Mode::kStepped, .seed = seed})
      .value();
}
inline std::shared_ptr<FakeMachine> Threaded() {
  return FakeMachine::Create({.mode = FakeMachine::Mode::kThreads}).value();
}

// Pages of the host.
class HostPages {
 public:
  explicit HostPages(uint64_t bytes = 4096)
      : mapping_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0),
                 bytes) {}
  void* data() const { return mapping_.data(); }
  uint64_t bytes() const { return mapping_.size(); }

 private:
  Mapping mapping_;
};

}  // namespace maypole::gpu

#endif  // MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_TESTING_H_
