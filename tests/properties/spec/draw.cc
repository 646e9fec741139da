#include "tests/properties/spec/draw.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace maypole::properties {
namespace {

bool IsFloat(DType d) {
  return d == DType::kFloat16 || d == DType::kFloat32 || d == DType::kFloat64 ||
         d == DType::kBfloat16;
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
                            w.eager_bytes,
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

uint64_t DrawRowElements(Random& random) {
  if (OneIn(random, 12)) return 0;
  return 1 + (OneIn(random, 2) ? Below(random, 70) : 0);
}

// About `usual` rows, none, or up to twice as many.
int64_t DrawRows(Random& random, uint64_t usual) {
  if (OneIn(random, 6)) return 0;
  if (OneIn(random, 3))
    return static_cast<int64_t>(Below(random, 2 * usual + 2));
  return static_cast<int64_t>(usual);
}

void DrawGather(Random& random, const World& w, OperationSpec* o) {
  const uint64_t row_elements = DrawRowElements(random);
  const uint64_t row = std::max<uint64_t>(1, row_elements * SizeOf(o->dtype));
  const uint64_t rows = DrawBytes(random, w) / row / o->ranks.size();
  for (const int rank : o->ranks) {
    const int64_t mine = DrawRows(random, rows);
    o->shape.push_back(
        {o->IsAside(rank) ? 0 : mine, static_cast<int64_t>(row_elements)});
  }
}

void DrawAlltoall(Random& random, const World& w, OperationSpec* o) {
  const uint64_t row_elements = DrawRowElements(random);
  const uint64_t row = std::max<uint64_t>(1, row_elements * SizeOf(o->dtype));
  const uint64_t n = o->ranks.size();
  const uint64_t rows = DrawBytes(random, w) / row / n / n;
  o->equal_parts = OneIn(random, 4);
  for (const int rank : o->ranks) {
    std::vector<int64_t> splits(n, 0);
    const int64_t part = DrawRows(random, rows);
    int64_t all = 0;
    for (int64_t& split : splits) {
      if (o->IsAside(rank)) continue;
      split = o->equal_parts ? part : DrawRows(random, rows);
      all += split;
    }
    o->splits.push_back(std::move(splits));
    o->shape.push_back({all, static_cast<int64_t>(row_elements)});
  }
}

void DrawReduction(Random& random, OperationSpec* o) {
  constexpr Op kAll[] = {Op::kSum, Op::kAverage, Op::kMin, Op::kMax,
                         Op::kProduct};
  do {
    o->op = kAll[Below(random, o->kind == Kind::kReducescatter ? 2 : 5)];
  } while (o->op == Op::kAverage && o->dtype == DType::kBool);
  if (o->dtype == DType::kBool) return;
  if (IsFloat(o->dtype)) {
    const bool selects = o->op == Op::kMin || o->op == Op::kMax;
    if (OneIn(random, 2)) o->values = Values::kRounded;
    if (selects && OneIn(random, 2)) o->values = Values::kAnyBits;
  }
  // The first three are powers of two: exact wherever they are applied.
  constexpr double kFactors[] = {0.5, 0.25, 2.0, 0.1, 3.0};
  const uint64_t factors = o->values == Values::kExact ? 3 : 5;
  if (OneIn(random, 3)) o->prescale = kFactors[Below(random, factors)];
  if (OneIn(random, 3)) o->postscale = kFactors[Below(random, factors)];
}

int DrawRoot(Random& random, const OperationSpec& o) {
  for (int tries = 0;; ++tries) {
    const int root = o.ranks[Below(random, o.ranks.size())];
    if (!o.IsAside(root) || (tries == 0 && OneIn(random, 2))) return root;
  }
}

void DrawMismatch(Random& random, OperationSpec* o) {
  std::vector<int> live;
  for (const int rank : o->ranks) {
    if (!o->IsAside(rank)) live.push_back(rank);
  }
  if (live.size() < 2 || o->MustFail()) return;
  const int odd = live[Below(random, live.size())];
  const Signature plain = o->SignatureOf(odd);
  for (int tries = 0; tries < 20; ++tries) {
    const auto aspect = static_cast<Aspect>(1 + Below(random, 7));
    const Signature altered = Altered(plain, aspect, o->ranks);
    if (std::memcmp(&plain, &altered, sizeof(plain)) == 0) continue;
    o->odd_one = odd;
    o->aspect = aspect;
    return;
  }
}

OperationSpec Begin(Random& random, const World& w, const Place& place,
                    Kind kind) {
  OperationSpec o;
  o.kind = kind;
  o.seed = random();
  o.set = place.set;
  o.ranks = place.ranks;
  for (const int rank : o.ranks) o.nodes.push_back(w.NodeOf(rank));
  o.aside = place.aside;
  o.phase = place.phase;
  return o;
}

OperationSpec DrawRight(Random& random, const World& w, const Place& place,
                        Kind kind) {
  OperationSpec o = Begin(random, w, place, kind);
  if (kind == Kind::kBarrier) {
    o.dtype = DType::kUint8;
    o.shape.assign(o.ranks.size(), {0});
    return o;
  }
  o.dtype = static_cast<DType>(Below(random, kDTypes));
  o.arena = OneIn(random, 2);
  if (kind == Kind::kAllgather) {
    DrawGather(random, w, &o);
  } else if (kind == Kind::kAlltoall) {
    DrawAlltoall(random, w, &o);
  } else {
    auto shape = DrawShape(random, DrawBytes(random, w) / SizeOf(o.dtype));
    if (kind == Kind::kReducescatter && shape.empty()) shape = {1};
    o.shape.assign(o.ranks.size(), shape);
    o.in_place = kind != Kind::kReducescatter && OneIn(random, 2);
  }
  if (kind == Kind::kBroadcast) o.root = DrawRoot(random, o);
  if (Reduces(kind)) DrawReduction(random, &o);
  return o;
}

}  // namespace

bool Exists(const Signature& s) {
  if (!Reduces(s.kind)) return true;
  if (s.op == Op::kAdasum) return false;
  const bool adds = s.op == Op::kSum || s.op == Op::kAverage;
  if (s.kind == Kind::kReducescatter && !adds) return false;
  if (s.op == Op::kAverage && s.dtype == DType::kBool) return false;
  return s.dtype != DType::kBool || (s.prescale == 1.0 && s.postscale == 1.0);
}

Kind DrawKind(Random& random) {
  constexpr Kind kKinds[] = {
      Kind::kAllreduce, Kind::kAllreduce,     Kind::kAllreduce,
      Kind::kAllreduce, Kind::kReducescatter, Kind::kReducescatter,
      Kind::kBroadcast, Kind::kAllgather,     Kind::kAlltoall};
  return OneIn(random, 20) ? Kind::kBarrier
                           : kKinds[Below(random, std::size(kKinds))];
}

OperationSpec DrawOperation(Random& random, const World& world,
                            const Place& place, Kind kind) {
  OperationSpec o = DrawRight(random, world, place, kind);
  if (kind != Kind::kBarrier && OneIn(random, 15)) DrawMismatch(random, &o);
  return o;
}

OperationSpec DrawClosing(Random& random, const World& world,
                          const Place& place) {
  return DrawRight(random, world, place,
                   OneIn(random, 2) ? Kind::kBarrier : DrawKind(random));
}

Signature Altered(const Signature& s, Aspect aspect,
                  const std::vector<int>& ranks) {
  Signature t = s;
  switch (aspect) {
    case Aspect::kNone:
      break;
    case Aspect::kShape:
      t.shape[t.dims++] = 3;
      break;
    case Aspect::kDimension: {
      // An allgather's or alltoall's first one is each rank's own.
      const bool any_rows = Gathers(t.kind);
      if (t.dims > (any_rows ? 1 : 0)) ++t.shape[t.dims - 1];
      break;
    }
    case Aspect::kDType:
      do {
        t.dtype = static_cast<DType>((static_cast<int>(t.dtype) + 1) % kDTypes);
      } while (!Exists(t));
      break;
    case Aspect::kOp:
      if (!Reduces(t.kind)) break;
      do {
        t.op = static_cast<Op>((static_cast<int>(t.op) + 1) % kOps);
      } while (!Exists(t));
      break;
    case Aspect::kPrescale:
      if (t.dtype != DType::kBool && Reduces(t.kind)) t.prescale += 1.0;
      break;
    case Aspect::kPostscale:
      if (t.dtype != DType::kBool && Reduces(t.kind)) t.postscale += 1.0;
      break;
    case Aspect::kRoot: {
      if (t.kind != Kind::kBroadcast) break;
      const auto at = std::find(ranks.begin(), ranks.end(), t.root);
      t.root = std::next(at) == ranks.end() ? ranks.front() : *std::next(at);
      break;
    }
  }
  return t;
}

}  // namespace maypole::properties
