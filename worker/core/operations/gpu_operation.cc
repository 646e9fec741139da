#include "worker/core/operations/gpu_operation.h"

#include <algorithm>
#include <cstddef>

namespace maypole::worker {
namespace {

size_t PositionOf(const SlotEntry& entry, size_t local_member) {
  return static_cast<size_t>(
      entry.set->PositionOf(entry.set->here[local_member]));
}

std::vector<int64_t> ScatteredRowsOfAll(const Signature& s, int ranks) {
  std::vector<int64_t> out;
  for (int i = 0; i < ranks; ++i) out.push_back(ScatteredRows(s, ranks, i));
  return out;
}

}  // namespace

GpuOperation MakeGpuOperation(uint32_t slot, const SlotEntry& entry,
                              const std::vector<uint32_t>& gpus,
                              const std::vector<int64_t>& rows) {
  const Signature& s = entry.signatures.front();
  const NodeSet& set = *entry.set;
  GpuOperation op{
      .slot = slot,
      .generation = entry.reported,
      .kind = s.kind,
      .dtype = s.dtype,
      .op = s.op,
      .elements = Gathers(s.kind) ? 0 : static_cast<uint64_t>(s.Elements()),
      .prescale = s.prescale,
      .divisor = s.op == Op::kAverage ? set.size() : 1,
      .postscale = s.postscale,
      .tensors = entry.gpu_tensors};
  if (s.kind == Kind::kAllreduce) return op;
  for (const uint32_t gpu : gpus) op.members.push_back({.gpu = gpu});
  for (size_t i = 0; i < set.here.size(); ++i) {
    op.members[PositionOf(entry, i)].tensor = static_cast<uint32_t>(i);
  }
  if (s.kind == Kind::kBroadcast) {
    op.root = static_cast<uint32_t>(set.PositionOf(s.root));
    return op;
  }
  const uint64_t row = s.RowBytes() / SizeOf(s.dtype);
  for (const int64_t n :
       Gathers(s.kind) ? rows : ScatteredRowsOfAll(s, set.size())) {
    op.counts.push_back(static_cast<uint64_t>(n) * row);
  }
  return op;
}

std::vector<int64_t> LocalRows(const SlotEntry& entry) {
  const size_t n = entry.set->ranks.size();
  const size_t each = entry.kind == Kind::kAlltoall ? n : 1;
  std::vector<int64_t> rows(n * each, 0);
  for (size_t i = 0; i < entry.set->here.size(); ++i) {
    int64_t* const to = rows.data() + PositionOf(entry, i) * each;
    if (entry.kind == Kind::kAlltoall) {
      std::copy_n(entry.splits.data() + i * n, n, to);
    } else {
      *to = entry.signatures[i].shape[0];
    }
  }
  return rows;
}

std::vector<uint64_t> RoomsOf(const SlotEntry& entry) {
  std::vector<uint64_t> rooms(entry.set->ranks.size(), UINT64_MAX);
  for (size_t i = 0; i < entry.gpu_rooms.size(); ++i) {
    rooms[PositionOf(entry, i)] = entry.gpu_rooms[i];
  }
  return rooms;
}

}  // namespace maypole::worker
