#include "tests/properties/spec.h"

#include <algorithm>

namespace maypole::properties {
namespace {

bool IsFloat(DType d) {
  return d == DType::kFloat16 || d == DType::kFloat32 || d == DType::kFloat64 ||
         d == DType::kBfloat16;
}

Kind DrawKind(Random& random) {
  constexpr Kind kKinds[] = {
      Kind::kAllreduce, Kind::kAllreduce, Kind::kAllreduce, Kind::kAllreduce,
      Kind::kBroadcast, Kind::kBroadcast, Kind::kAllgather, Kind::kAllgather};
  return OneIn(random, 20) ? Kind::kBarrier
                           : kKinds[Below(random, std::size(kKinds))];
}

// Bytes near an edge, or anything.
uint64_t DrawBytes(Random& random, const World& w) {
  const uint64_t k = static_cast<uint64_t>(w.ranks);
  const uint64_t edges[] = {0,
                            1,
                            64,
                            64 * k,
                            w.chunk_bytes / k,
                            w.chunk_bytes,
                            w.chunk_bytes * 2,
                            w.small_bytes,
                            w.chunk_bytes * (3 + Below(random, 20))};
  uint64_t bytes;
  if (OneIn(random, 3)) {
    bytes = Below(random, 1 + w.most_bytes / (1 + Below(random, 1000)));
  } else {
    const uint64_t edge = edges[Below(random, std::size(edges))];
    const uint64_t off = OneIn(random, 2) ? 0 : Below(random, 2 * 65);
    bytes = edge + off > 65 && off > 0 ? edge + off - 65 : edge + off / 2;
  }
  return std::min(bytes, w.most_bytes);
}

// Up to three dimensions whose product is about `elements`.
std::vector<int64_t> DrawShape(Random& random, uint64_t elements) {
  const auto n = static_cast<int64_t>(elements);
  switch (Below(random, 6)) {
    case 0:
      if (n == 1) return {};
      return {n};
    case 1: {
      const auto rows = static_cast<int64_t>(1 + Below(random, 5));
      return {rows, n / rows};
    }
    case 2: {
      const auto last = static_cast<int64_t>(1 + Below(random, 7));
      return {n / last, last};
    }
    case 3:
      return {1, n, 1};
    default:
      return {n};
  }
}

void DrawGather(Random& random, const World& w, OperationSpec* o) {
  uint64_t row_elements = 1 + (OneIn(random, 2) ? Below(random, 70) : 0);
  if (OneIn(random, 12)) row_elements = 0;
  const uint64_t row = std::max<uint64_t>(1, row_elements * SizeOf(o->dtype));
  const uint64_t all = DrawBytes(random, w);
  for (int r = 0; r < w.ranks; ++r) {
    uint64_t rows = all / row / static_cast<uint64_t>(w.ranks);
    if (OneIn(random, 3)) rows = Below(random, 2 * rows + 2);
    if (OneIn(random, 6)) rows = 0;
    o->shape.push_back(
        {static_cast<int64_t>(rows), static_cast<int64_t>(row_elements)});
  }
}

void DrawReduction(Random& random, const World& w, OperationSpec* o) {
  o->op = OneIn(random, 2) ? Op::kSum : Op::kAverage;
  o->rounded = IsFloat(o->dtype) && w.nodes == 1 && OneIn(random, 2);
  if (!IsFloat(o->dtype)) return;
  // Powers of two: exact, whether applied before or after rounding.
  constexpr double kFactors[] = {0.5, 0.25, 2.0};
  if (!o->rounded && OneIn(random, 3)) o->prescale = kFactors[Below(random, 3)];
  if (OneIn(random, 3)) o->postscale = kFactors[Below(random, 3)];
}

OperationSpec DrawOperation(Random& random, const World& w) {
  OperationSpec o;
  o.kind = DrawKind(random);
  o.seed = random();
  if (o.kind == Kind::kBarrier) {
    o.shape.assign(static_cast<size_t>(w.ranks), {0});
    return o;
  }
  do {
    o.dtype = static_cast<DType>(Below(random, kDTypes));
  } while (o.kind == Kind::kAllreduce && o.dtype == DType::kBool);
  if (o.kind == Kind::kAllgather) {
    DrawGather(random, w, &o);
    return o;
  }
  o.shape.assign(static_cast<size_t>(w.ranks),
                 DrawShape(random, DrawBytes(random, w) / SizeOf(o.dtype)));
  o.in_place = OneIn(random, 2);
  o.arena = OneIn(random, 2);
  if (OneIn(random, 15)) {
    o.odd_one = static_cast<int>(Below(random, static_cast<uint64_t>(w.ranks)));
    o.shape[static_cast<size_t>(o.odd_one)].push_back(3);
  }
  if (o.kind == Kind::kBroadcast) {
    o.root = static_cast<int>(Below(random, static_cast<uint64_t>(w.ranks)));
  } else {
    DrawReduction(random, w, &o);
  }
  return o;
}

}  // namespace

Random RandomFor(uint64_t seed, uint64_t purpose) {
  std::seed_seq all{seed & 0xffffffff, seed >> 32, purpose};
  return Random(all);
}

int64_t OperationSpec::Elements(int rank) const {
  int64_t n = 1;
  for (int64_t d : shape[static_cast<size_t>(rank)]) n *= d;
  return n;
}

uint64_t OperationSpec::Bytes(int rank) const {
  return static_cast<uint64_t>(Elements(rank)) * SizeOf(dtype);
}

std::string OperationSpec::Text() const {
  std::string out(maypole::Name(kind));
  out += " '" + name + "' " + std::string(maypole::Name(dtype)) + " ";
  if (kind == Kind::kAllreduce) out += std::string(maypole::Name(op)) + " ";
  for (size_t r = 0; r < (kind == Kind::kAllgather ? shape.size() : 1); ++r) {
    out += "[";
    for (size_t i = 0; i < shape[r].size(); ++i) {
      out += (i > 0 ? "," : "") + std::to_string(shape[r][i]);
    }
    out += "]";
  }
  if (kind == Kind::kBroadcast) out += " root " + std::to_string(root);
  if (prescale != 1.0) out += " prescale " + std::to_string(prescale);
  if (postscale != 1.0) out += " postscale " + std::to_string(postscale);
  if (in_place) out += " in place";
  if (arena) out += " arena";
  if (rounded) out += " rounded";
  if (odd_one >= 0) out += " mismatched by rank " + std::to_string(odd_one);
  return out + " phase " + std::to_string(phase);
}

Program MakeProgram(uint64_t seed, const World& world) {
  Random random = RandomFor(seed, 0);
  Program p;
  p.seed = seed;
  p.phases = 1 + static_cast<int>(Below(random, 3));
  const auto most = static_cast<uint64_t>(world.most_operations);
  const int n = 1 + static_cast<int>(Below(random, most));
  const uint64_t first_name = Below(random, 100);
  for (int i = 0; i < n; ++i) {
    OperationSpec o = DrawOperation(random, world);
    if (o.kind != Kind::kBarrier && !OneIn(random, 6)) {
      o.name = "t" + std::to_string(first_name + static_cast<uint64_t>(i));
    }
    o.phase = static_cast<int>(Below(random, static_cast<uint64_t>(p.phases)));
    p.operations.push_back(std::move(o));
  }
  std::stable_sort(
      p.operations.begin(), p.operations.end(),
      [](const auto& a, const auto& b) { return a.phase < b.phase; });
  return p;
}

}  // namespace maypole::properties
