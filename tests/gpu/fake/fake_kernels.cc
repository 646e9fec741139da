#include "tests/gpu/fake/fake_kernels.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "tests/gpu/fake/config.h"
#include "tests/gpu/fake/process.h"

namespace maypole::cuda::fake {
namespace {

template <typename T>
const T& Get(void** arguments, size_t index) {
  return *static_cast<const T*>(arguments[index]);
}

// fake_add_one(float* values, uint64_t count)
void RunFakeAddOne(unsigned, unsigned, void** arguments) {
  const auto count = Get<uint64_t>(arguments, 1);
  auto* const values = static_cast<float*>(
      HostView(Get<CUdeviceptr>(arguments, 0), count * sizeof(float)));
  for (uint64_t i = 0; i < count; ++i) values[i] += 1;
}

// fake_fill(uint32_t* values, uint64_t count, uint32_t value)
void RunFakeFill(unsigned, unsigned, void** arguments) {
  const auto count = Get<uint64_t>(arguments, 1);
  auto* const values = static_cast<uint32_t*>(
      HostView(Get<CUdeviceptr>(arguments, 0), count * sizeof(uint32_t)));
  std::fill_n(values, count, Get<uint32_t>(arguments, 2));
}

// fake_delay(uint64_t nanoseconds)
void RunFakeDelay(unsigned, unsigned, void** arguments) {
  std::this_thread::sleep_for(
      std::chrono::nanoseconds(Get<uint64_t>(arguments, 0)));
}

// fake_wait(const uint64_t* flag): until it is not zero
void RunFakeWait(unsigned, unsigned, void** arguments) {
  auto* const flag = static_cast<uint64_t*>(
      HostView(Get<CUdeviceptr>(arguments, 0), sizeof(uint64_t)));
  while (std::atomic_ref(*flag).load(std::memory_order_acquire) == 0) {
    std::this_thread::yield();
  }
}

std::vector<FakeKernel> MakeKernels() {
  std::vector<FakeKernel> kernels = {
      {"fake_add_one", {sizeof(CUdeviceptr), sizeof(uint64_t)}, RunFakeAddOne},
      {"fake_fill",
       {sizeof(CUdeviceptr), sizeof(uint64_t), sizeof(uint32_t)},
       RunFakeFill},
      {"fake_delay", {sizeof(uint64_t)}, RunFakeDelay},
      {"fake_wait", {sizeof(CUdeviceptr)}, RunFakeWait},
  };
  SetHostAddress(&HostView);
  for (const HostKernel& k : HostKernels()) {
    kernels.push_back({k.name,
                       {k.argument_bytes, k.argument_bytes + k.argument_count},
                       k.run,
                       k.arrays});
  }
  return kernels;
}

const std::vector<FakeKernel>& Kernels() {
  static const auto& kernels = *new std::vector<FakeKernel>(MakeKernels());
  return kernels;
}

}  // namespace

const FakeKernel* FindKernel(std::string_view name) {
  for (const FakeKernel& kernel : Kernels()) {
    if (kernel.name == name) return &kernel;
  }
  return nullptr;
}

void* HostView(CUdeviceptr address, size_t bytes) {
  FakeProcess& process = FakeProcess::Get();
  FakeProcess::Held held(process.mutex());
  const Place place = process.memory().Where(address, bytes);
  if (place.kind != Place::kKnown) {
    Illegal("a kernel uses an address of no known memory");
  }
  return place.data;
}

}  // namespace maypole::cuda::fake
