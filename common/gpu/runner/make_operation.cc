#include "common/gpu/runner/make_operation.h"

#include <algorithm>

namespace maypole {
namespace {

std::vector<int64_t> ScatteredRowsOfAll(const Signature& s, int ranks) {
  std::vector<int64_t> out;
  for (int i = 0; i < ranks; ++i) out.push_back(ScatteredRows(s, ranks, i));
  return out;
}

}  // namespace

GpuOperation MakeOperation(const Signature& s, const std::vector<int>& ranks,
                           const std::vector<int64_t>& rows) {
  const auto size = static_cast<int>(ranks.size());
  GpuOperation o{
      .kind = s.kind,
      .dtype = s.dtype,
      .op = s.op,
      .elements = Gathers(s.kind) ? 0 : static_cast<uint64_t>(s.Elements()),
      .prescale = s.prescale,
      .divisor = s.op == Op::kAverage ? size : 1,
      .postscale = s.postscale};
  if (s.kind == Kind::kAllreduce) return o;
  o.members.resize(ranks.size());
  if (s.kind == Kind::kBroadcast) {
    o.root = static_cast<uint32_t>(
        std::lower_bound(ranks.begin(), ranks.end(), s.root) - ranks.begin());
    return o;
  }
  const uint64_t row = s.RowBytes() / SizeOf(s.dtype);
  for (const int64_t n : Gathers(s.kind) ? rows : ScatteredRowsOfAll(s, size)) {
    o.counts.push_back(static_cast<uint64_t>(n) * row);
  }
  return o;
}

}  // namespace maypole
