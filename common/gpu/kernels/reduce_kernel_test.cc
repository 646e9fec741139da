// Every reduction kernel, run on the host, gives the bits of common/reduce.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "common/gpu/kernels/kernels.h"
#include "common/gpu/kernels/testing/guarded.h"
#include "common/gpu/kernels/testing/host_kernels.h"
#include "common/reduce/reduce.h"

namespace maypole::cuda {
namespace {

constexpr Op kElementOps[] = {Op::kAverage, Op::kSum, Op::kMin, Op::kMax,
                              Op::kProduct};
constexpr uint64_t kPrescalesAll = ~uint64_t{0};

bool IsFloat(DType dtype) {
  return GroupOf(dtype) != KernelGroup::kReduceIntegers;
}

struct Grid {
  unsigned blocks;
  unsigned threads;
};

struct Case {
  DType dtype = DType::kFloat32;
  Op op = Op::kSum;
  size_t inputs = 1;
  size_t outputs = 1;
  size_t elements = 0;
  size_t remainder = 0;  // of all addresses, modulo 16
  bool alike = true;     // otherwise, each array has another remainder
  bool in_place = false;
  Grid grid = {1, 32};
  double prescale = 1.0;
  uint64_t prescaled = kPrescalesAll;
  int64_t divisor = 1;
  double postscale = 1.0;

  std::string Words() const {
    std::string s(Name(dtype));
    s += " " + std::string(Name(op)) + ", " + std::to_string(inputs) +
         " inputs, " + std::to_string(outputs) + " outputs, " +
         std::to_string(elements) + " elements, remainder " +
         std::to_string(remainder) + (alike ? "" : " and others") +
         (in_place ? ", in place" : "") + ", grid " +
         std::to_string(grid.blocks) + "x" + std::to_string(grid.threads);
    return s;
  }
};

// A float of any dtype, as its bits.
void WriteFloat(DType dtype, double value, std::byte* at) {
  const auto f = static_cast<float>(value);
  uint16_t bits = 0;
  switch (dtype) {
    case DType::kFloat16:
      bits = FloatToHalf(f);
      break;
    case DType::kBfloat16:
      bits = FloatToBfloat16(f);
      break;
    case DType::kFloat32:
      std::memcpy(at, &f, sizeof(f));
      return;
    default:
      std::memcpy(at, &value, sizeof(value));
      return;
  }
  std::memcpy(at, &bits, sizeof(bits));
}

bool IsNan(DType dtype, const std::byte* at) {
  uint16_t bits = 0;
  float f = 0;
  double d = 0;
  std::memcpy(&bits, at, sizeof(bits));
  switch (dtype) {
    case DType::kFloat16:
      return std::isnan(HalfToFloat(bits));
    case DType::kBfloat16:
      return std::isnan(Bfloat16ToFloat(bits));
    case DType::kFloat32:
      std::memcpy(&f, at, sizeof(f));
      return std::isnan(f);
    case DType::kFloat64:
      std::memcpy(&d, at, sizeof(d));
      return std::isnan(d);
    default:
      return false;
  }
}

// Any bits, ordinary numbers, and the special values of floats.
void Fill(DType dtype, size_t elements, std::mt19937_64& random,
          std::byte* at) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kSpecial[] = {0.0,   -0.0, kInfinity, -kInfinity, 1e-45,
                                 -6e-8, 5e4,  5e-324,    -1e38,      NAN};
  const size_t size = SizeOf(dtype);
  for (size_t i = 0; i < elements; ++i, at += size) {
    const uint64_t bits = random();
    std::memcpy(at, &bits, size);
    if (!IsFloat(dtype)) {
      if (bits >> 62 == 0) std::memset(at, 0, size);
    } else if (bits >> 60 == 0) {
      WriteFloat(dtype, kSpecial[random() % std::size(kSpecial)], at);
    } else if (bits >> 63 == 0) {
      const auto value = static_cast<double>(static_cast<int64_t>(random()));
      WriteFloat(dtype, std::ldexp(value, -60), at);
    }
  }
}

class CaseRun {
 public:
  CaseRun(const Case& c, uint64_t seed) : case_(c), random_(seed) {
    const size_t bytes = c.elements * SizeOf(c.dtype);
    for (size_t k = 0; k < c.inputs; ++k) {
      inputs_.emplace_back(bytes, Remainder(k));
      Fill(c.dtype, c.elements, random_, inputs_[k].data());
    }
    for (size_t k = 0; k < c.outputs; ++k) {
      outputs_.emplace_back(bytes, Remainder(k + 1));
    }
  }

  void Check() {
    SCOPED_TRACE(case_.Words());
    const std::vector<std::byte> want = Expected();
    Launch();
    for (size_t k = 0; k < case_.outputs; ++k) {
      const std::byte* got =
          case_.in_place ? inputs_[k].data() : outputs_[k].data();
      ExpectSame(want, got);
    }
    for (const Guarded& g : inputs_) EXPECT_TRUE(g.GuardsAreWhole());
    for (const Guarded& g : outputs_) EXPECT_TRUE(g.GuardsAreWhole());
  }

 private:
  size_t Remainder(size_t array) const {
    return (case_.remainder + (case_.alike ? 0 : array * 3)) % 16;
  }

  // As the CPU's path does it: scaled copies, reduced.
  std::vector<std::byte> Expected() {
    const size_t bytes = case_.elements * SizeOf(case_.dtype);
    std::vector<std::vector<std::byte>> scaled;
    std::vector<const std::byte*> pointers;
    for (size_t k = 0; k < case_.inputs; ++k) {
      scaled.emplace_back(inputs_[k].data(), inputs_[k].data() + bytes);
      if (IsFloat(case_.dtype) && case_.prescale != 1.0 &&
          (case_.prescaled >> k & 1) != 0) {
        Scale(case_.dtype, scaled[k].data(), scaled[k].data(), case_.elements,
              case_.prescale);
      }
    }
    for (const auto& s : scaled) pointers.push_back(s.data());
    std::vector<std::byte> out(bytes);
    Epilogue finish{.divisor = case_.divisor};
    if (IsFloat(case_.dtype)) finish.scale = case_.postscale;
    Reduce(case_.dtype, case_.op, pointers, out.data(), case_.elements, finish);
    return out;
  }

  void Launch() {
    std::vector<uint64_t> in, out;
    for (Guarded& g : inputs_) in.push_back(g.device());
    for (size_t k = 0; k < case_.outputs; ++k) {
      out.push_back(case_.in_place ? in[k] : outputs_[k].device());
    }
    ReduceArguments arguments = MakeReduceArguments({
        .dtype = case_.dtype,
        .inputs = in,
        .outputs = out,
        .elements = case_.elements,
        .prescale = case_.prescale,
        .prescaled = case_.prescaled,
        .divisor = case_.divisor,
        .postscale = case_.postscale,
    });
    const HostKernel* kernel =
        FindHostKernel(ReduceKernel(case_.dtype, case_.op));
    ASSERT_NE(kernel, nullptr);
    SetHostAddress(&GuardedHostAddress);
    void* pointers[] = {&arguments};
    kernel->run(case_.grid.blocks, case_.grid.threads, pointers);
  }

  // Equal bits, or both NaN.
  void ExpectSame(const std::vector<std::byte>& want, const std::byte* got) {
    const size_t size = SizeOf(case_.dtype);
    for (size_t i = 0; i < case_.elements; ++i) {
      const std::byte *a = want.data() + i * size, *b = got + i * size;
      if (std::memcmp(a, b, size) == 0) continue;
      ASSERT_TRUE(IsNan(case_.dtype, a) && IsNan(case_.dtype, b))
          << "element " << i;
    }
  }

  const Case case_;
  std::mt19937_64 random_;
  std::vector<Guarded> inputs_;
  std::vector<Guarded> outputs_;
};

// Calls visit(case) for every dtype and operation.
template <typename Visit>
void ForAllKernels(const Visit& visit) {
  for (int d = 0; d < kDTypes; ++d) {
    for (const Op op : kElementOps) {
      visit(Case{.dtype = static_cast<DType>(d), .op = op});
      if (testing::Test::HasFailure()) return;
    }
  }
}

constexpr size_t kInputCounts[] = {1, 2, 3, 8, 64};
constexpr size_t kLengths[] = {0, 1, 7, 64, 333};
constexpr Grid kGrids[] = {{1, 1}, {3, 5}, {2, 256}};

TEST(ReduceKernelTest, GivesTheBitsOfTheCpu) {
  uint64_t seed = 0;
  ForAllKernels([&](Case c) {
    for (const size_t inputs : kInputCounts) {
      for (const size_t elements : kLengths) {
        c.inputs = inputs;
        c.outputs = 1 + seed % 3;
        c.elements = elements;
        c.grid = kGrids[seed % 3];
        CaseRun(c, ++seed).Check();
      }
    }
  });
}

TEST(ReduceKernelTest, WritesBackToItsInputs) {
  uint64_t seed = 100000;
  ForAllKernels([&](Case c) {
    for (const size_t inputs : kInputCounts) {
      c.in_place = true;
      c.inputs = c.outputs = inputs;
      c.elements = 333;
      c.remainder = SizeOf(c.dtype) * (seed % 2);
      c.grid = kGrids[seed % 3];
      CaseRun(c, ++seed).Check();
    }
  });
}

TEST(ReduceKernelTest, TakesEveryAlignment) {
  uint64_t seed = 200000;
  ForAllKernels([&](Case c) {
    for (size_t remainder = 0; remainder < 16; ++remainder) {
      for (const bool alike : {true, false}) {
        c.inputs = 2;
        c.outputs = 2;
        c.elements = 50 + seed % 40;
        c.remainder = remainder;
        c.alike = alike;
        c.grid = kGrids[seed % 3];
        CaseRun(c, ++seed).Check();
      }
    }
  });
}

TEST(ReduceKernelTest, AveragesLikeTheCpu) {
  uint64_t seed = 300000;
  for (int d = 0; d < kDTypes; ++d) {
    for (const int64_t divisor : {int64_t{2}, int64_t{3}, kMaxDivisor}) {
      Case c{.dtype = static_cast<DType>(d), .op = Op::kAverage};
      c.inputs = 3;
      c.elements = 333;
      c.divisor = divisor;
      CaseRun(c, ++seed).Check();
    }
  }
}

TEST(ReduceKernelTest, ScalesLikeTheCpu) {
  uint64_t seed = 400000;
  ForAllKernels([&](Case c) {
    if (!IsFloat(c.dtype)) return;
    for (const double prescale : {1.0, 0.7, -3.0, 0.0}) {
      for (const double postscale : {1.0, 1.0 / 3, -2e-4}) {
        for (const size_t inputs : {1, 3, 64}) {
          c.inputs = inputs;
          c.elements = 70;
          c.prescale = prescale;
          c.postscale = postscale;
          if (c.op == Op::kAverage) c.divisor = 7;
          CaseRun(c, ++seed).Check();
        }
      }
    }
  });
}

TEST(ReduceKernelTest, PrescalesOnlyTheChosenInputs) {
  uint64_t seed = 500000;
  ForAllKernels([&](Case c) {
    if (!IsFloat(c.dtype)) return;
    for (const uint64_t prescaled : {0ull, 1ull, 0x8000000000000002ull}) {
      c.inputs = 64;
      c.elements = 30;
      c.prescale = 1.7;
      c.prescaled = prescaled;
      CaseRun(c, ++seed).Check();
    }
  });
}

// Integers with factors are for the host (client/gpu/staging.cc).
TEST(ReduceKernelTest, IntegersHaveNoFactors) {
  Case c{.dtype = DType::kInt32, .inputs = 2, .elements = 40};
  c.prescale = 3.0;
  c.postscale = 5.0;
  CaseRun(c, 1).Check();
}

}  // namespace
}  // namespace maypole::cuda
