// The conformance suite of a CUDA driver. Ends with status 3 and one line if
// there is no usable one.
#include <cstdio>

#include "tests/gpu/conformance/conformance.h"

namespace maypole::cuda {

int ConformanceMain(int argc, char** argv) {
  constexpr int kNoDriver = 3;
  if (IsPeer(argc, argv)) return RunPeer();
  testing::InitGoogleTest(&argc, argv);
  if (testing::FLAGS_gtest_list_tests) return RUN_ALL_TESTS();
  const Driver* driver = nullptr;
  if (const Status s = LoadDriver(&driver); !s.ok()) {
    std::fprintf(stderr, "conformance: %s\n", s.message().c_str());
    return kNoDriver;
  }
  try {
    Device device(*driver);
    ConformanceTest::shared = &device;
    std::printf("%s, %s\n", device.gpu().name().c_str(),
                device.gpu().uuid().c_str());
    return RUN_ALL_TESTS();
  } catch (const CudaError& e) {
    std::fprintf(stderr, "conformance: %s\n", e.what());
    return kNoDriver;
  }
}

}  // namespace maypole::cuda

int main(int argc, char** argv) {
  return maypole::cuda::ConformanceMain(argc, argv);
}
