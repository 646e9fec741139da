#include "worker/gpu/testing/collective_fixture.h"

#include <dlfcn.h>

#include <cstring>
#include <random>
#include <span>

#include "common/reduce/reduce.h"

namespace maypole::worker {

using cuda::fake::cuda;

const std::vector<Case> kCases = {
    {DType::kFloat32, Op::kSum, 1},
    {DType::kFloat32, Op::kSum, 7001, 0.3, 1, 1.7},
    {DType::kFloat32, Op::kAverage, 4096, 1.0, 3},
    {DType::kFloat32, Op::kAverage, 333, 0.25, 4, 0.1},
    {DType::kFloat32, Op::kMin, 999},
    {DType::kFloat32, Op::kMax, 999, -1.5, 1, 3.0},
    {DType::kFloat64, Op::kSum, 500, 0.7, 1, 1.1},
    {DType::kFloat64, Op::kProduct, 65},
    {DType::kFloat16, Op::kSum, 501, 0.5},
    {DType::kBfloat16, Op::kAverage, 777, 0.5, 4, 3.0},
    {DType::kBfloat16, Op::kMax, 1024},
    {DType::kInt32, Op::kSum, 3000, 0.5, 1, 0.5},
    {DType::kInt32, Op::kAverage, 65, 1.0, 3},
    {DType::kInt64, Op::kMin, 65},
    {DType::kInt64, Op::kProduct, 66},
    {DType::kInt8, Op::kMax, 77},
    {DType::kUint8, Op::kMin, 78},
    {DType::kUint8, Op::kSum, 79},
    {DType::kBool, Op::kSum, 80},
    {DType::kBool, Op::kProduct, 81},
    {DType::kBool, Op::kMin, 82},
    {DType::kBool, Op::kMax, 83},
};

Bytes SomeValues(DType dtype, uint64_t elements, uint32_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> uniform(-9.0f, 9.0f);
  const size_t size = SizeOf(dtype);
  Bytes bytes(elements * size);
  for (uint64_t i = 0; i < elements; ++i) {
    const float f = uniform(random);
    const double d = f;
    uint64_t n = random();
    const uint16_t half = FloatToHalf(f), brain = FloatToBfloat16(f);
    if (dtype == DType::kBool && n % 3 != 0) n = 0;
    const void* from = &n;
    if (dtype == DType::kFloat32) from = &f;
    if (dtype == DType::kFloat64) from = &d;
    if (dtype == DType::kFloat16) from = &half;
    if (dtype == DType::kBfloat16) from = &brain;
    std::memcpy(bytes.data() + i * size, from, size);
  }
  return bytes;
}

namespace {

Bytes ReduceOnCpu(const Case& c, Op op, const std::vector<Bytes>& inputs,
                  const Epilogue& finish) {
  std::vector<const std::byte*> addresses;
  for (const Bytes& input : inputs) addresses.push_back(input.data());
  Bytes output(inputs[0].size());
  Reduce(c.dtype, op, addresses, output.data(), c.elements, finish);
  return output;
}

bool IsFloat(DType d) {
  return d == DType::kFloat16 || d == DType::kBfloat16 ||
         d == DType::kFloat32 || d == DType::kFloat64;
}

}  // namespace

Bytes OnCpu(const Case& c, const std::vector<std::vector<Bytes>>& inputs) {
  std::vector<Bytes> of_gpus;
  for (std::vector<Bytes> of_gpu : inputs) {
    for (Bytes& input : of_gpu) {
      if (c.prescale == 1.0 || !IsFloat(c.dtype)) continue;
      Scale(c.dtype, input.data(), input.data(), c.elements, c.prescale);
    }
    of_gpus.push_back(ReduceOnCpu(c, c.op, of_gpu, {}));
  }
  const Bytes all = ReduceOnCpu(c, c.op, of_gpus, {});
  return ReduceOnCpu(c, c.op, {all},
                     {.divisor = c.divisor, .scale = c.postscale});
}

namespace {

constexpr char kLibrary[] = "tests/gpu/fake_nccl/libnccl.so.2";

}  // namespace

CollectiveFixture::CollectiveFixture() { nccl_library_ = kLibrary; }

uint64_t CollectiveFixture::NcclCalls(const char* name) {
  static void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  static const auto calls = reinterpret_cast<uint64_t (*)(const char*)>(
      dlsym(library, "fakeNcclCalls"));
  return calls(name);
}

void CollectiveFixture::Settle() {
  // The runner's thread first makes ids, then does what else it was asked for.
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(NewId(0).ok());
}

void CollectiveFixture::SetUp() {
  GpuRunnerFixture::SetUp();
  cuda::CUcontext context = nullptr;
  ASSERT_EQ(cuda().cuDevicePrimaryCtxRetain(&context, 1), cuda::CUDA_SUCCESS);
}

void CollectiveFixture::TearDown() {
  if (leaks_) return DestroyRunner();
  GpuRunnerFixture::TearDown();
  EXPECT_EQ(cuda().cuDevicePrimaryCtxRelease(1), cuda::CUDA_SUCCESS);
}

void CollectiveFixture::OpenRanks(uint32_t per_gpu) {
  for (uint32_t local = 0; local < kGpus * per_gpu; ++local) {
    const uint32_t gpu = local / per_gpu;
    memories_.push_back(Create(kBytes, static_cast<int>(gpu)));
    const auto opened = OpenNow({local, 1}, memories_.back());
    ASSERT_TRUE(opened.ok()) << opened.status();
    ASSERT_EQ(opened->gpu, gpu);
  }
}

void CollectiveFixture::Connect(uint32_t number, const std::string& id,
                                uint32_t size, uint32_t first) {
  runner().Connect(
      {.number = number, .size = size, .first = first, .gpus = {0, 1}}, id);
}

GpuOperation CollectiveFixture::OperationOf(const Case& c, uint32_t slot,
                                            uint32_t place) const {
  GpuOperation o;
  o.slot = slot;
  o.dtype = c.dtype;
  o.op = c.op;
  o.elements = c.elements;
  o.prescale = c.prescale;
  o.divisor = c.divisor;
  o.postscale = c.postscale;
  for (uint32_t local = 0; local < ranks(); ++local) {
    const auto gpu = static_cast<uint32_t>(memories_[local].device);
    o.tensors.push_back({{local, 1}, place * kApart, gpu});
  }
  return o;
}

GpuOperation CollectiveFixture::BroadcastOf(uint64_t elements, uint32_t slot,
                                            uint32_t root,
                                            uint32_t root_local) const {
  GpuOperation o = OperationOf({.elements = elements}, slot, 0);
  o.kind = Kind::kBroadcast;
  o.root = root;
  o.root_tensor = root_local;
  return o;
}

Bytes CollectiveFixture::Floats(float value, uint64_t elements) {
  const std::vector<float> floats(elements, value);
  const auto bytes = std::as_bytes(std::span(floats));
  return {bytes.begin(), bytes.end()};
}

}  // namespace maypole::worker
