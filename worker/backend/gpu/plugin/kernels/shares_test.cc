// The kernels' bodies on the host: every thread of a grid, one after the other.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "common/reduce/reduce.h"
#include "worker/backend/gpu/plugin/kernels/copy_share.h"
#include "worker/backend/gpu/plugin/kernels/reduce_share.h"

namespace maypole::gpu::plugin {
namespace {

constexpr size_t kGuard = 64;  // bytes before and after, never written

// Bytes at an address that is a multiple of 16, plus `shift`.
class Buffer {
 public:
  Buffer(size_t bytes, size_t shift)
      : bytes_(bytes), memory_(bytes + 2 * kGuard + 32, std::byte{0x5a}) {
    const auto at = reinterpret_cast<uintptr_t>(memory_.data()) + kGuard;
    offset_ = kGuard + (0 - at) % 16 + shift;
  }
  std::byte* data() { return memory_.data() + offset_; }
  // Nothing but its bytes has been written.
  bool GuardsAreWhole() const {
    const auto whole = [](std::byte b) { return b == std::byte{0x5a}; };
    return std::all_of(memory_.begin(), memory_.begin() + offset_, whole) &&
           std::all_of(memory_.begin() + offset_ + bytes_, memory_.end(),
                       whole);
  }

 private:
  size_t bytes_;
  size_t offset_;
  std::vector<std::byte> memory_;
};

// Calls share(thread) for every thread, in a random order.
template <typename Share>
void ForEachThread(uint64_t threads, std::mt19937_64& random,
                   const Share& share) {
  std::vector<uint64_t> order(threads);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  for (const uint64_t thread : order) share(thread);
}

template <typename E, typename O>
void ReduceAll(const ReduceTask& task, bool specialised, uint64_t thread,
               uint64_t threads) {
  switch (specialised ? task.input_count : 0) {
    case 1:
      return ReduceShare<E, O, 1>(task, thread, threads);
    case 2:
      return ReduceShare<E, O, 2>(task, thread, threads);
    case 3:
      return ReduceShare<E, O, 3>(task, thread, threads);
    case 4:
      return ReduceShare<E, O, 4>(task, thread, threads);
    case 5:
      return ReduceShare<E, O, 5>(task, thread, threads);
    case 8:
      return ReduceShare<E, O, 8>(task, thread, threads);
    default:
      return ReduceShare<E, O, 0>(task, thread, threads);
  }
}

struct Case {
  DType dtype = DType::kFloat32;
  Op op = Op::kSum;
  uint32_t inputs = 1;
  uint32_t outputs = 1;
  uint64_t elements = 0;
  uint64_t threads = 1;
  size_t shift = 0;         // of all addresses, bytes
  bool in_place = false;    // output j is input j
  bool specialised = true;  // the body for this number of inputs
  double scale = 1.0;

  std::string Words() const {
    return std::string(Name(dtype)) + " " + std::string(Name(op)) + " " +
           std::to_string(inputs) + " to " + std::to_string(outputs) + " of " +
           std::to_string(elements) + ", " + std::to_string(threads) +
           " threads, shift " + std::to_string(shift) +
           (in_place ? ", in place" : "") + (specialised ? "" : ", any k");
  }
};

// Random bits are NaN, infinity, subnormal and the rest; often, the special
// ones themselves.
template <typename E>
void FillElements(std::byte* at, uint64_t elements, std::mt19937_64& random) {
  using Accumulator = typename E::Accumulator;
  using Limits = std::numeric_limits<Accumulator>;
  const Accumulator special[] = {Accumulator{0},      -Accumulator{0},
                                 Limits::infinity(),  -Limits::infinity(),
                                 Limits::quiet_NaN(), Accumulator{1},
                                 Limits::denorm_min()};
  for (uint64_t i = 0; i < elements; ++i) {
    typename E::Stored stored;
    if (random() % 8 == 0) {
      stored = E::Store(special[random() % std::size(special)]);
    } else {
      stored = E::Store(static_cast<Accumulator>(
          std::ldexp(static_cast<double>(static_cast<int64_t>(random())),
                     -60 - static_cast<int>(random() % 12))));
    }
    std::memcpy(at + i * sizeof(stored), &stored, sizeof(stored));
  }
}

template <typename E>
void ExpectSame(const std::byte* got, const std::byte* want,
                uint64_t elements) {
  for (uint64_t i = 0; i < elements; ++i) {
    typename E::Stored a, b;
    std::memcpy(&a, got + i * sizeof(a), sizeof(a));
    std::memcpy(&b, want + i * sizeof(b), sizeof(b));
    if (std::isnan(E::Load(a)) && std::isnan(E::Load(b))) continue;
    ASSERT_EQ(0, std::memcmp(&a, &b, sizeof(a)))
        << "element " << i << ": " << E::Load(a) << ", not " << E::Load(b);
  }
}

template <typename E>
void RunCase(const Case& c, uint64_t seed) {
  SCOPED_TRACE(c.Words() + ", seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const size_t bytes = c.elements * sizeof(typename E::Stored);
  std::vector<Buffer> inputs(c.inputs, Buffer(bytes, c.shift));
  std::vector<Buffer> fresh(c.outputs, Buffer(bytes, c.shift));
  ReduceTask task = {};
  task.input_count = c.inputs;
  task.output_count = c.outputs;
  task.elements = c.elements;
  task.scale = c.scale;
  task.vectors = c.shift % kVectorBytes == 0;
  std::vector<const std::byte*> in;
  for (uint32_t k = 0; k < c.inputs; ++k) {
    // Copies of a vector's memory may lie otherwise: made anew.
    inputs[k] = Buffer(bytes, c.shift);
    FillElements<E>(inputs[k].data(), c.elements, random);
    task.inputs[k] = inputs[k].data();
    in.push_back(inputs[k].data());
  }
  for (uint32_t j = 0; j < c.outputs; ++j) {
    fresh[j] = Buffer(bytes, c.shift);
    task.outputs[j] = c.in_place ? inputs[j].data() : fresh[j].data();
  }
  std::vector<std::byte> want(bytes);
  Reduce(c.dtype, c.op, in, want.data(), c.elements, Epilogue{1, c.scale});

  ForEachThread(c.threads, random, [&](uint64_t thread) {
    if (c.op == Op::kMin) {
      ReduceAll<E, Min>(task, c.specialised, thread, c.threads);
    } else if (c.op == Op::kMax) {
      ReduceAll<E, Max>(task, c.specialised, thread, c.threads);
    } else {
      ReduceAll<E, Add>(task, c.specialised, thread, c.threads);
    }
  });

  for (uint32_t j = 0; j < c.outputs; ++j) {
    ExpectSame<E>(task.outputs[j], want.data(), c.elements);
  }
  for (const Buffer& buffer : inputs) EXPECT_TRUE(buffer.GuardsAreWhole());
  for (const Buffer& buffer : fresh) EXPECT_TRUE(buffer.GuardsAreWhole());
}

void RunCase(const Case& c, uint64_t seed) {
  switch (c.dtype) {
    case DType::kFloat16:
      return RunCase<Half>(c, seed);
    case DType::kBfloat16:
      return RunCase<Brain>(c, seed);
    case DType::kFloat64:
      return RunCase<Plain<double>>(c, seed);
    default:
      return RunCase<Plain<float>>(c, seed);
  }
}

constexpr DType kDTypesReduced[] = {DType::kFloat32, DType::kFloat64,
                                    DType::kFloat16, DType::kBfloat16};
constexpr Op kOpsReduced[] = {Op::kSum, Op::kMin, Op::kMax};
constexpr uint64_t kElements[] = {0, 1, 3, 4, 7, 8, 9, 63, 64, 1000, 1031};
constexpr uint64_t kThreadCounts[] = {1, 3, 32, 257, 2048};

TEST(ReduceShare, GivesTheBitsOfCommonReduce) {
  uint64_t seed = 0;
  for (const DType dtype : kDTypesReduced) {
    for (const Op op : kOpsReduced) {
      for (const uint32_t inputs : {1, 2, 3, 4, 5, 8, 9, 16}) {
        for (const uint64_t elements : kElements) {
          for (const uint64_t threads : kThreadCounts) {
            RunCase({.dtype = dtype,
                     .op = op,
                     .inputs = inputs,
                     .outputs = static_cast<uint32_t>(1 + seed % 3),
                     .elements = elements,
                     .threads = threads},
                    seed);
            ++seed;
          }
        }
      }
    }
  }
}

TEST(ReduceShare, WritesBackToItsInputs) {
  uint64_t seed = 0;
  for (const DType dtype : kDTypesReduced) {
    for (const uint32_t inputs : {1, 2, 4, 8, 12}) {
      for (const uint64_t elements : kElements) {
        RunCase({.dtype = dtype,
                 .inputs = inputs,
                 .outputs = inputs,
                 .elements = elements,
                 .threads = 1 + seed % 50,
                 .in_place = true},
                seed);
        ++seed;
      }
    }
  }
}

TEST(ReduceShare, TakesAddressesThatAreAlignedToAnElementOnly) {
  uint64_t seed = 0;
  for (const DType dtype : kDTypesReduced) {
    for (const uint64_t elements : kElements) {
      RunCase({.dtype = dtype,
               .inputs = 3,
               .outputs = 2,
               .elements = elements,
               .threads = 1 + seed % 50,
               .shift = SizeOf(dtype)},
              seed);
      ++seed;
    }
  }
}

TEST(ReduceShare, TheBodyForAnyNumberOfInputsDoesTheSame) {
  for (uint32_t inputs = 1; inputs <= 16; ++inputs) {
    RunCase({.inputs = inputs,
             .elements = 1031,
             .threads = 33,
             .specialised = false},
            inputs);
  }
}

TEST(ReduceShare, ScalesOnceAfterTheOperation) {
  uint64_t seed = 0;
  for (const DType dtype : kDTypesReduced) {
    for (const Op op : kOpsReduced) {
      for (const double scale : {0.25, 1.0 / 3, -2.0}) {
        RunCase({.dtype = dtype,
                 .op = op,
                 .inputs = 4,
                 .elements = 1000,
                 .threads = 7,
                 .scale = scale},
                seed);
        ++seed;
      }
    }
  }
}

// 2048 + 1 has no float16, and + 1 again would never leave 2048.
TEST(ReduceShare, SixteenBitTypesAreAccumulatedInFloat32) {
  const uint16_t big = FloatToHalf(2048), one = FloatToHalf(1);
  uint16_t result = 0;
  ReduceTask task = {};
  task.inputs[0] = reinterpret_cast<const std::byte*>(&big);
  task.inputs[1] = task.inputs[2] = reinterpret_cast<const std::byte*>(&one);
  task.outputs[0] = reinterpret_cast<std::byte*>(&result);
  task.input_count = 3;
  task.output_count = 1;
  task.elements = 1;
  task.scale = 1;
  ReduceShare<Half, Add, 3>(task, 0, 1);
  EXPECT_EQ(HalfToFloat(result), 2050);
}

void RunCopy(uint64_t bytes, size_t to_shift, size_t from_shift,
             uint64_t threads, std::mt19937_64& random) {
  SCOPED_TRACE(std::to_string(bytes) + " bytes to " + std::to_string(to_shift) +
               " from " + std::to_string(from_shift) + ", " +
               std::to_string(threads) + " threads");
  Buffer to(bytes, to_shift), from(bytes, from_shift);
  for (uint64_t i = 0; i < bytes; ++i) {
    from.data()[i] = static_cast<std::byte>(random());
  }
  const CopyTask task = {to.data(), from.data(), bytes};
  ForEachThread(threads, random,
                [&](uint64_t thread) { CopyShare(task, thread, threads); });
  EXPECT_EQ(0, std::memcmp(to.data(), from.data(), bytes));
  EXPECT_TRUE(to.GuardsAreWhole());
}

TEST(CopyShare, CopiesEveryByteAndNoOther) {
  std::mt19937_64 random(1);
  for (const uint64_t bytes : {1, 2, 15, 16, 17, 31, 100, 4096, 70001}) {
    for (const size_t to : {0, 1, 8, 15}) {
      for (const size_t from : {0, 1, 8, 15}) {
        for (const uint64_t threads : {1, 3, 64, 1024}) {
          RunCopy(bytes, to, from, threads, random);
        }
      }
    }
  }
}

}  // namespace
}  // namespace maypole::gpu::plugin
