#include "common/gpu/runner/testing/collective_fixture.h"

#include <dlfcn.h>

#include <algorithm>
#include <span>
#include <utility>

namespace maypole {
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
  // The runner's thread makes ids first, then handles the other requests.
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(NewId(0).ok());
}

void CollectiveFixture::SetUp() {
  GpuRunnerFixture::SetUp();
  cuda::CUcontext context = nullptr;
  ASSERT_EQ(cuda::fake::cuda().cuDevicePrimaryCtxRetain(&context, 1),
            cuda::CUDA_SUCCESS);
}

void CollectiveFixture::TearDown() {
  if (leaks_) return DestroyRunner();
  GpuRunnerFixture::TearDown();
  EXPECT_EQ(cuda::fake::cuda().cuDevicePrimaryCtxRelease(1),
            cuda::CUDA_SUCCESS);
}

void CollectiveFixture::MakeRanks(uint32_t per_gpu) {
  for (uint32_t local = 0; local < kGpus * per_gpu; ++local) {
    memories_.push_back(Create(kBytes, static_cast<int>(local / per_gpu)));
  }
}

void CollectiveFixture::OpenRanks(uint32_t per_gpu) {
  MakeRanks(per_gpu);
  for (uint32_t local = 0; local < ranks(); ++local) {
    const auto opened = OpenNow({local, 1}, memories_[local]);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    ASSERT_EQ(opened->gpu, local / per_gpu);
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
                                            uint32_t root) const {
  GpuOperation o = OperationOf({.elements = elements}, slot, 0);
  o.kind = Kind::kBroadcast;
  o.root = root;
  for (uint32_t t = 0; t < o.tensors.size(); ++t) {
    o.members.push_back({o.tensors[t].gpu, t});
  }
  return o;
}

GpuOperation CollectiveFixture::OperationOf(const KindCase& k, uint32_t slot,
                                            uint32_t place) const {
  GpuOperation o = OperationOf(k.c, slot, place);
  const std::vector<GpuTensor> all = std::exchange(o.tensors, {});
  o.kind = k.kind;
  o.root = k.root;
  o.counts = k.counts;
  for (const uint32_t gpu : NcclRanksOf(k, per_gpu())) {
    o.members.push_back({.gpu = gpu});
  }
  // Tensors are in the order of local ranks, members in that of the set.
  for (uint32_t local = 0; local < ranks(); ++local) {
    const auto it =
        std::find(k.ranks.begin(), k.ranks.end(), node_ * ranks() + local);
    if (it == k.ranks.end()) continue;
    o.members[it - k.ranks.begin()].tensor =
        static_cast<uint32_t>(o.tensors.size());
    o.tensors.push_back(all[local]);
    if (!k.in_place || Gathers(k.kind)) {
      o.tensors.back().result = all[local].offset + kApart / 2;
    }
  }
  return o;
}

void CollectiveFixture::WriteInputs(const KindCase& k, uint32_t place) const {
  for (size_t i = 0; i < k.ranks.size(); ++i) {
    if (IsHere(k.ranks[i])) Write(k.ranks[i] % ranks(), place, InputOf(k, i));
  }
}

void CollectiveFixture::ExpectResults(const KindCase& k, uint32_t place) const {
  for (size_t i = 0; i < k.ranks.size(); ++i) {
    if (!IsHere(k.ranks[i])) continue;
    const RankMemory& memory = memories_[k.ranks[i] % ranks()];
    const bool in_place = k.in_place && !Gathers(k.kind);
    const bool scatters = k.kind == Kind::kReducescatter;
    const uint64_t tensor = place * kApart;
    uint64_t result = tensor + kApart / 2;
    if (in_place) {
      result = tensor + (scatters ? k.StartOf(i) * SizeOf(k.c.dtype) : 0);
    }
    const Bytes wanted = WantedOf(k, i, per_gpu());
    EXPECT_EQ(memory.Read(result, wanted.size()), wanted)
        << Name(k.kind) << " with seed " << k.seed << ", member " << i;
    if (in_place || scatters) continue;
    const Bytes input = InputOf(k, i);
    EXPECT_EQ(memory.Read(tensor, input.size()), input)
        << "input of " << Name(k.kind) << " with seed " << k.seed;
  }
}

Bytes CollectiveFixture::Floats(float value, uint64_t elements) {
  const std::vector<float> floats(elements, value);
  const auto bytes = std::as_bytes(std::span(floats));
  return {bytes.begin(), bytes.end()};
}

}  // namespace maypole
