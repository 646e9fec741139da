// ConformanceTest: what Maypole relies on, as a test of a CUDA driver.
//
// Purpose: each test shows one property that the product or its planned device
// path needs. The tests run on the fake driver, so that the fake is no better
// than a device, and on real devices, so that neither is a guess. A test skips
// with a reason where a device may lack what it needs.
//
//   class WordTest : public ConformanceTest {};
//   TEST_F(WordTest, ...) {
//     if (!device().gpu().writes_values()) GTEST_SKIP() << "...";
//
// Thread contract: tests run on the main thread, on which the first GPU's
// primary context is current.
//
// Invariants: only functions of Driver are called, besides those that begin and
// end a capture. A test leaves no work behind.
#ifndef MAYPOLE_TESTS_GPU_CONFORMANCE_CONFORMANCE_H_
#define MAYPOLE_TESTS_GPU_CONFORMANCE_CONFORMANCE_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/gpu/testing/device.h"
#include "tests/gpu/testing/memory.h"
#include "tests/gpu/testing/peer.h"

namespace maypole::cuda {

class ConformanceTest : public testing::Test {
 protected:
  // Null until main() has set it.
  static inline Device* shared = nullptr;
  friend int ConformanceMain(int argc, char** argv);

  Device& device() const { return *shared; }
  const Driver& cuda() const { return shared->cuda(); }
  CUstream stream() const { return shared->stream(); }

  void TearDown() override { shared->Synchronize(); }

  // Work that takes longer than calls of the driver do.
  void Occupy(CUstream stream) {
    const CUdeviceptr memory = device().Alloc(2 * kOccupyBytes);
    for (int i = 0; i < 8; ++i) {
      EXPECT_EQ(cuda().cuMemcpyAsync(memory, memory + kOccupyBytes,
                                     kOccupyBytes, stream),
                CUDA_SUCCESS);
    }
    occupied_.push_back(memory);
  }
  // Frees what Occupy() has used; waits for all work.
  void FreeOccupied() {
    for (const CUdeviceptr memory : occupied_) device().Free(memory);
    occupied_.clear();
  }

 private:
  static constexpr size_t kOccupyBytes = 8 << 20;
  std::vector<CUdeviceptr> occupied_;
};

// Calls body() in another thread; an exception fails the test.
template <typename Body>
void RunInThread(const Body& body) {
  std::thread([&] { EXPECT_NO_THROW(body()); }).join();
}

// Each byte is the one before it, and the first is `value`.
inline bool AreAll(std::span<const std::byte> data, unsigned char value) {
  return data.empty() ||
         (data[0] == std::byte{value} &&
          std::memcmp(data.data(), data.data() + 1, data.size() - 1) == 0);
}

inline bool AreAll(const std::byte* data, size_t bytes, unsigned char value) {
  return AreAll(std::span(data, bytes), value);
}

}  // namespace maypole::cuda

#endif  // MAYPOLE_TESTS_GPU_CONFORMANCE_CONFORMANCE_H_
