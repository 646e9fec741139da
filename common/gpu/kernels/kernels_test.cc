#include "common/gpu/kernels/kernels.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/gpu/kernels/built.h"
#include "common/gpu/kernels/testing/host_kernels.h"

namespace maypole::cuda {
namespace {

std::string_view Text(KernelImage image) {
  return {reinterpret_cast<const char*>(image.data()), image.size()};
}

TEST(KernelsTest, EveryDtypeAndOperationHasAKernelAndNoneIsInVain) {
  std::set<std::string> used = {kCopyKernel, kWriteWordKernel};
  for (int d = 0; d < kDTypes; ++d) {
    for (int o = 0; o < kOps; ++o) {
      const auto dtype = static_cast<DType>(d);
      const std::string name = ReduceKernel(dtype, static_cast<Op>(o));
      const HostKernel* kernel = FindHostKernel(name);
      ASSERT_NE(kernel, nullptr) << name;
      EXPECT_EQ(kernel->group, GroupOf(dtype)) << name;
      used.insert(name);
    }
  }
  EXPECT_EQ(used.size(), HostKernels().size());
}

TEST(KernelsTest, NamesOfReductions) {
  EXPECT_EQ(ReduceKernel(DType::kFloat32, Op::kAverage),
            "maypole_reduce_float32_average");
  EXPECT_EQ(ReduceKernel(DType::kFloat32, Op::kAdasum),
            "maypole_reduce_float32_sum");
  EXPECT_EQ(ReduceKernel(DType::kUint16, Op::kSum), "maypole_reduce_int16_sum");
  EXPECT_EQ(ReduceKernel(DType::kUint16, Op::kMin),
            "maypole_reduce_uint16_min");
  EXPECT_EQ(ReduceKernel(DType::kBool, Op::kMax), "maypole_reduce_bool_sum");
  EXPECT_EQ(FindHostKernel("maypole_reduce_bool_min"), nullptr);
}

// The driver reads it up to the byte 0.
TEST(KernelsTest, TheLastImagesArePtxForOldDriversAndGpus) {
  for (int group = 0; group < kKernelGroups; ++group) {
    auto images = KernelImages(static_cast<KernelGroup>(group));
    std::vector<int> targets = {70};
    if (images.size() > 1) {
      const auto built = PtxArchitectures();
      targets.assign(built.begin(), built.end());
      images = images.subspan(1);
    }
    ASSERT_EQ(images.size(), targets.size());
    for (size_t i = 0; i < images.size(); ++i) {
      const std::string_view ptx = Text(images[i]);
      EXPECT_EQ(ptx.find('\0'), ptx.size() - 1);
      EXPECT_NE(ptx.find(".version 8.0\n.target sm_" +
                         std::to_string(targets[i]) + "\n.address_size 64\n"),
                ptx.npos);
    }
    EXPECT_EQ(targets.back(), 70);
  }
}

TEST(KernelsTest, ImagesHaveAllKernelsOrNone) {
  for (const HostKernel& kernel : HostKernels()) {
    const auto images = KernelImages(kernel.group);
    const bool compiled = images.size() > 1;
    for (const KernelImage& image : images) {
      EXPECT_EQ(Text(image).find(kernel.name) != std::string_view::npos,
                compiled)
          << kernel.name;
    }
  }
}

TEST(KernelsTest, VectorsAreUsedIfAllAddressesAreAlike) {
  const std::vector<uint64_t> in = {0x1004, 0x2004}, out = {0x3004};
  Reduction r{.dtype = DType::kFloat32, .inputs = in, .outputs = out};
  r.elements = 100;
  ReduceArguments a = MakeReduceArguments(r);
  EXPECT_EQ(a.head, 3u);
  EXPECT_EQ(a.vectors, 24u);
  EXPECT_EQ(a.bytewise, 0u);

  const std::vector<uint64_t> elsewhere = {0x3008}, odd = {0x3005};
  r.outputs = elsewhere;
  a = MakeReduceArguments(r);
  EXPECT_EQ(a.vectors, 0u);
  EXPECT_EQ(a.bytewise, 0u);

  r.outputs = odd;
  EXPECT_EQ(MakeReduceArguments(r).bytewise, 1u);
  r.inputs = r.outputs = odd;  // alike, but odd
  a = MakeReduceArguments(r);
  EXPECT_EQ(a.vectors, 0u);
  EXPECT_EQ(a.bytewise, 1u);
}

TEST(KernelsTest, NumberOfBlocks) {
  const std::vector<uint64_t> at = {0x1000};
  Reduction r{.dtype = DType::kFloat32, .inputs = at, .outputs = at};
  r.elements = 4 * 1024 + 1;
  EXPECT_EQ(BlocksFor(MakeReduceArguments(r), 100), 4u);
  EXPECT_EQ(BlocksFor(MakeReduceArguments(r), 3), 3u);
  r.elements = 0;
  EXPECT_EQ(BlocksFor(MakeReduceArguments(r), 100), 1u);

  const std::vector<CopiedPiece> pieces = {
      {0, 0, 1}, {0, 0, 0}, {0, 0, kTileBytes + 1}};
  EXPECT_EQ(BlocksFor(MakeCopyArguments(pieces), 100), 3u);
  EXPECT_EQ(BlocksFor(MakeCopyArguments({}), 100), 1u);
}

}  // namespace
}  // namespace maypole::cuda
