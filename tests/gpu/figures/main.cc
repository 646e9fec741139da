// Measures what determines the design and the speed of Maypole on a GPU.
//
//   figures [--quick] [--json=FILE]
//
// Ends with status 3 and one line if there is no GPU, or if it was built
// without kernels.
#include <cstdio>
#include <cstring>
#include <string>

#include "tests/gpu/figures/figures.h"
#include "tests/gpu/testing/peer.h"

namespace maypole::cuda {
namespace {

constexpr int kFailed = 1, kUsage = 2, kNoGpu = 3;

int End(int status, const std::string& line) {
  std::fprintf(stderr, "figures: %s\n", line.c_str());
  return status;
}

std::string About(const Device& device, bool quick) {
  int version = 0;
  device.cuda().cuDriverGetVersion(&version);
  return "\"device\": " + Quoted(device.gpu().name()) +
         ",\n  \"driver\": " + Quoted(CudaVersion(version)) +
         ",\n  \"meaningless\": " + (quick ? "true" : "false");
}

int Measure(const Driver& driver, bool quick, const std::string& json) {
  Device device(driver);
  if (device.Kernel(KernelGroup::kCopy, kCopyKernel) == nullptr) {
    return End(kNoGpu, "built without kernels; build with CUDA's nvcc");
  }
  Report report;
  Run run = {device, report, quick};
  run.copy_rate = MeasureCopies(run);
  MeasureLatencies(run);
  if (OthersCanUse(device)) {
    MeasureReductions(run);
    MeasureOverlap(run);
  } else {
    for (const char* name : {"reduce", "overlap"}) {
      report.Skip(name, "the device's compute mode allows one process");
    }
  }
  std::printf("%s\n", device.gpu().name().c_str());
  if (quick) std::printf("--quick: these figures are meaningless\n");
  report.Print();
  if (json.empty() || report.WriteJson(json, About(device, quick))) return 0;
  return End(kFailed, "cannot write " + json);
}

}  // namespace

int FiguresMain(int argc, char** argv) {
  if (IsPeer(argc, argv)) return RunPeer();
  bool quick = false;
  std::string json;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--quick") {
      quick = true;
    } else if (argument.rfind("--json=", 0) == 0) {
      json = argument.substr(std::strlen("--json="));
    } else {
      return End(kUsage, "usage: figures [--quick] [--json=FILE]");
    }
  }
  const Driver* driver = nullptr;
  if (const Status s = LoadDriver(&driver); !s.ok()) {
    return End(kNoGpu, s.message());
  }
  try {
    return Measure(*driver, quick, json);
  } catch (const std::exception& e) {
    return End(kFailed, e.what());
  }
}

}  // namespace maypole::cuda

int main(int argc, char** argv) {
  return maypole::cuda::FiguresMain(argc, argv);
}
