// The product's kernels, on the device, give the bits of common/reduce.
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "common/reduce/reduce.h"
#include "tests/gpu/conformance/conformance.h"

namespace maypole::cuda {
namespace {

constexpr size_t kInputCounts[] = {2, 3, 8};
constexpr size_t kMostInputs = 8;
constexpr size_t kArrayBytes = 8192;

bool IsFloat(DType dtype) {
  return GroupOf(dtype) != KernelGroup::kReduceIntegers;
}

// Around whole vectors.
std::vector<size_t> Lengths(DType dtype) {
  const size_t vector = kVectorBytes / SizeOf(dtype);
  return {1, vector - 1, vector, vector + 1, 37 * vector + vector / 2};
}

// Numbers whose sums and products are finite: the bits of a NaN are not fixed.
double OrdinaryNumber(std::mt19937_64& random) {
  const uint64_t bits = random();
  if (bits % 16 == 0) return -0.0;
  if (bits % 16 == 1) return 1e-40;
  const double value = std::ldexp(static_cast<double>(bits >> 12), -52) + 0.25;
  return bits % 2 == 0 ? value : -value;
}

void Put(DType dtype, double value, std::byte* at) {
  const auto f = static_cast<float>(value);
  uint16_t half = 0;
  if (dtype == DType::kFloat32) std::memcpy(at, &f, sizeof(f));
  if (dtype == DType::kFloat64) std::memcpy(at, &value, sizeof(value));
  if (dtype == DType::kFloat16) half = FloatToHalf(f);
  if (dtype == DType::kBfloat16) half = FloatToBfloat16(f);
  if (SizeOf(dtype) == sizeof(half)) std::memcpy(at, &half, sizeof(half));
}

std::vector<std::byte> Numbers(DType dtype, std::mt19937_64& random) {
  std::vector<std::byte> data(kArrayBytes);
  for (std::byte& b : data) b = static_cast<std::byte>(random() >> 56);
  if (!IsFloat(dtype)) return data;
  for (size_t at = 0; at < kArrayBytes; at += SizeOf(dtype)) {
    Put(dtype, OrdinaryNumber(random), data.data() + at);
  }
  return data;
}

class KernelTest : public ConformanceTest {
 protected:
  void SetUp() override {
    if (device().Kernel(KernelGroup::kCopy, kCopyKernel) == nullptr) {
      GTEST_SKIP() << "built without kernels (nvcc)";
    }
    // Inputs, then outputs, each with room for an address that is not aligned.
    memory_ = device().Alloc(2 * kMostInputs * kStride);
  }
  void TearDown() override {
    device().Synchronize();
    if (memory_ != 0) device().Free(memory_);
  }

  struct Case {
    DType dtype;
    Op op;
    size_t inputs;
    size_t remainder = 0;
    double prescale = 1.0;
    double postscale = 1.0;
  };

  // Reduces the beginnings of the same inputs, with each length.
  void Check(const Case& c, uint64_t seed) {
    SCOPED_TRACE(std::string(Name(c.dtype)) + " " + std::string(Name(c.op)) +
                 ", " + std::to_string(c.inputs) + " inputs");
    std::mt19937_64 random(seed);
    std::vector<std::vector<std::byte>> inputs;
    std::vector<std::byte> all(kMostInputs * kStride);
    for (size_t k = 0; k < c.inputs; ++k) {
      inputs.push_back(Numbers(c.dtype, random));
      std::copy(
          inputs[k].begin(), inputs[k].end(),
          all.begin() + static_cast<ptrdiff_t>(k * kStride + c.remainder));
    }
    device().Upload(memory_, all);
    const std::vector<size_t> lengths = Lengths(c.dtype);
    for (size_t i = 0; i < lengths.size(); ++i) Launch(c, lengths[i], i);
    const std::vector<std::byte> got = device().Download(
        memory_ + kMostInputs * kStride, kMostInputs * kStride);
    for (size_t i = 0; i < lengths.size(); ++i) {
      const std::vector<std::byte> want = Expected(c, inputs, lengths[i]);
      ASSERT_EQ(std::memcmp(got.data() + i * kStride + c.remainder, want.data(),
                            want.size()),
                0)
          << lengths[i] << " elements";
    }
  }

 private:
  static constexpr size_t kStride = kArrayBytes + 64;

  void Launch(const Case& c, size_t elements, size_t output) {
    std::vector<uint64_t> in;
    for (size_t k = 0; k < c.inputs; ++k) {
      in.push_back(memory_ + k * kStride + c.remainder);
    }
    const uint64_t out[] = {memory_ + (kMostInputs + output) * kStride +
                            c.remainder};
    device().Reduce(c.dtype, c.op,
                    MakeReduceArguments({.dtype = c.dtype,
                                         .inputs = in,
                                         .outputs = out,
                                         .elements = elements,
                                         .prescale = c.prescale,
                                         .divisor = Divisor(c),
                                         .postscale = c.postscale}),
                    0, stream());
  }

  static int64_t Divisor(const Case& c) {
    return c.op == Op::kAverage ? static_cast<int64_t>(c.inputs) : 1;
  }

  static std::vector<std::byte> Expected(
      const Case& c, std::vector<std::vector<std::byte>> inputs,
      size_t elements) {
    std::vector<const std::byte*> pointers;
    for (auto& input : inputs) {
      if (c.prescale != 1.0) {
        Scale(c.dtype, input.data(), input.data(), elements, c.prescale);
      }
      pointers.push_back(input.data());
    }
    std::vector<std::byte> out(elements * SizeOf(c.dtype));
    Reduce(c.dtype, c.op, pointers, out.data(), elements,
           {.divisor = Divisor(c), .scale = c.postscale});
    return out;
  }

  CUdeviceptr memory_ = 0;
};

TEST_F(KernelTest, ReducesToTheBitsOfTheCpu) {
  uint64_t seed = 0;
  for (int d = 0; d < kDTypes; ++d) {
    for (const Op op :
         {Op::kAverage, Op::kSum, Op::kMin, Op::kMax, Op::kProduct}) {
      for (const size_t inputs : kInputCounts) {
        Check({static_cast<DType>(d), op, inputs}, ++seed);
      }
    }
  }
}

TEST_F(KernelTest, ScalesToTheBitsOfTheCpu) {
  for (const DType dtype :
       {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBfloat16}) {
    Check({dtype, Op::kSum, 3, 0, 0.7, 1.0 / 3}, 1000);
    Check({dtype, Op::kAverage, 8, 0, 1.0, -2e-2}, 1001);
  }
}

TEST_F(KernelTest, ReducesAtAnyAddress) {
  for (const size_t remainder : {1, 2, 4, 8}) {
    Check({DType::kFloat32, Op::kSum, 3, remainder}, 2000 + remainder);
    Check({DType::kBfloat16, Op::kMax, 2, remainder}, 3000 + remainder);
  }
}

TEST_F(KernelTest, CopiesPieces) {
  std::mt19937_64 random(1);
  constexpr size_t kBytes = 100'000, kPieces = 12;
  std::vector<std::byte> data(kBytes);
  for (std::byte& b : data) b = static_cast<std::byte>(random());
  const CUdeviceptr from = device().Alloc(kBytes), to = device().Alloc(kBytes);
  device().Upload(from, data);
  device().Fill(to, kBytes, 0x5a);
  std::vector<std::byte> want(kBytes, std::byte{0x5a});
  std::vector<CopiedPiece> pieces;
  size_t at = 0;
  for (size_t p = 0; p < kPieces; ++p) {  // with gaps, at any alignment
    const size_t bytes = p == 3 ? 0 : p == 5 ? 3 * kTileBytes + 5 : p * 401;
    const size_t source = kBytes - at - bytes;
    pieces.push_back({from + source, to + at, bytes});
    std::copy_n(data.begin() + static_cast<ptrdiff_t>(source), bytes,
                want.begin() + static_cast<ptrdiff_t>(at));
    at += bytes + p % 4;
  }
  device().CopyPieces(MakeCopyArguments(pieces), stream());
  EXPECT_EQ(device().Download(to, kBytes), want);
  device().Free(from);
  device().Free(to);
}

}  // namespace
}  // namespace maypole::cuda
