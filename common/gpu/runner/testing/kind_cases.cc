#include "common/gpu/runner/testing/kind_cases.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <random>

#include "common/reduce/reduce.h"

namespace maypole {

const std::vector<Case> kCases = {
    {DType::kFloat32, Op::kSum, 1},
    {DType::kFloat32, Op::kSum, 7001, 0.3, 1, 1.7},
    {DType::kFloat32, Op::kAverage, 4096, 1.0, 3},
    {DType::kFloat32, Op::kAverage, 333, 0.25, 4, 0.1},
    {DType::kFloat32, Op::kAverage, 1000, 1.0, 2},
    {DType::kFloat16, Op::kAverage, 1000, 0.5, 4},
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
  // Factors of integers are for the host (client/gpu/staging.cc).
  const Epilogue finish = {.divisor = c.divisor,
                           .scale = IsFloat(c.dtype) ? c.postscale : 1.0};
  std::vector<Bytes> of_gpus;
  for (std::vector<Bytes> of_gpu : inputs) {
    for (Bytes& input : of_gpu) {
      if (c.prescale == 1.0 || !IsFloat(c.dtype)) continue;
      Scale(c.dtype, input.data(), input.data(), c.elements, c.prescale);
    }
    if (inputs.size() == 1) return ReduceOnCpu(c, c.op, of_gpu, finish);
    of_gpus.push_back(ReduceOnCpu(c, c.op, of_gpu, {}));
  }
  const Bytes all = ReduceOnCpu(c, c.op, of_gpus, {});
  return ReduceOnCpu(c, c.op, {all}, finish);
}

// --- All kinds ---------------------------------------------------------------

uint64_t KindCase::StartOf(size_t i) const {
  return std::accumulate(
      counts.begin(), counts.begin() + static_cast<ptrdiff_t>(i), uint64_t{0});
}

namespace {

std::vector<uint64_t> SomeCounts(size_t n, bool ragged,
                                 std::mt19937_64& random) {
  std::vector<uint64_t> counts(n, 1 + random() % 500);
  for (uint64_t& count : counts) {
    if (ragged) count = random() % 3 == 0 ? 0 : 1 + random() % 700;
  }
  if (counts == std::vector<uint64_t>(n, 0)) counts[random() % n] = 3;
  return counts;
}

Bytes PartOf(const Bytes& all, DType dtype, uint64_t start, uint64_t count) {
  const auto first =
      all.begin() + static_cast<ptrdiff_t>(start * SizeOf(dtype));
  return {first, first + static_cast<ptrdiff_t>(count * SizeOf(dtype))};
}

void Append(Bytes& to, const Bytes& from) {
  to.insert(to.end(), from.begin(), from.end());
}

uint64_t ElementsOf(const KindCase& k, size_t i) {
  const size_t n = k.ranks.size();
  if (k.kind == Kind::kAllgather) return k.counts[i];
  if (k.kind == Kind::kAlltoall) {
    return k.StartOf((i + 1) * n) - k.StartOf(i * n);
  }
  return k.c.elements;
}

Bytes Reduced(const KindCase& k, uint32_t per_gpu) {
  std::map<uint32_t, std::vector<Bytes>> by_rank;
  for (size_t i = 0; i < k.ranks.size(); ++i) {
    by_rank[k.ranks[i]].push_back(InputOf(k, i));
  }
  std::map<uint32_t, std::vector<Bytes>> by_gpu;
  for (const auto& [rank, input] : by_rank) {
    by_gpu[rank / per_gpu].push_back(input[0]);
  }
  std::vector<std::vector<Bytes>> inputs;
  for (const auto& [gpu, of_gpu] : by_gpu) inputs.push_back(of_gpu);
  return OnCpu(k.c, inputs);
}

}  // namespace

KindCase MakeKind(Kind kind, const Shape& shape,
                  const std::vector<uint32_t>& ranks, uint32_t seed) {
  std::mt19937_64 random(seed);
  const size_t n = ranks.size();
  KindCase k = {.kind = kind, .ranks = ranks, .seed = seed};
  k.c = kCases[random() % kCases.size()];
  if (!Reduces(kind)) {
    k.c = {static_cast<DType>(random() % kDTypes), Op::kSum,
           1 + random() % 3000};
  }
  k.in_place = shape.in_place && !Gathers(kind);
  k.root = static_cast<uint32_t>(random() % n);
  if (kind == Kind::kReducescatter || Gathers(kind)) {
    k.counts =
        SomeCounts(kind == Kind::kAlltoall ? n * n : n, shape.ragged, random);
  }
  if (kind == Kind::kReducescatter) k.c.elements = k.StartOf(n);
  return k;
}

Bytes InputOf(const KindCase& k, size_t i) {
  return SomeValues(k.c.dtype, ElementsOf(k, i),
                    100 * k.seed + static_cast<uint32_t>(i));
}

Bytes WantedOf(const KindCase& k, size_t i, uint32_t per_gpu) {
  const size_t n = k.ranks.size();
  Bytes wanted;
  switch (k.kind) {
    case Kind::kAllreduce:
      return Reduced(k, per_gpu);
    case Kind::kReducescatter:
      return PartOf(Reduced(k, per_gpu), k.c.dtype, k.StartOf(i), k.counts[i]);
    case Kind::kBroadcast:
      return InputOf(k, k.root);
    case Kind::kAllgather:
      for (size_t j = 0; j < n; ++j) Append(wanted, InputOf(k, j));
      return wanted;
    default:
      for (size_t j = 0; j < n; ++j) {
        Append(wanted, PartOf(InputOf(k, j), k.c.dtype,
                              k.StartOf(j * n + i) - k.StartOf(j * n),
                              k.counts[j * n + i]));
      }
      return wanted;
  }
}

std::vector<uint32_t> NcclRanksOf(const KindCase& k, uint32_t per_gpu) {
  std::map<uint32_t, uint32_t> numbers;
  for (const uint32_t rank : k.ranks) numbers[rank / per_gpu] = 0;
  uint32_t next = 0;
  for (auto& [gpu, number] : numbers) number = next++;
  std::vector<uint32_t> ranks;
  for (const uint32_t rank : k.ranks) ranks.push_back(numbers[rank / per_gpu]);
  return ranks;
}

}  // namespace maypole
