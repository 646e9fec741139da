#include "worker/core/operations/gpu_operation.h"

#include <algorithm>
#include <cstddef>

#include "common/gpu/runner/make_operation.h"

namespace maypole::worker {
namespace {

size_t PositionOf(const SlotEntry& entry, size_t local_member) {
  return static_cast<size_t>(
      entry.set->PositionOf(entry.set->here[local_member]));
}

}  // namespace

GpuOperation MakeGpuOperation(uint32_t slot, const SlotEntry& entry,
                              const std::vector<uint32_t>& gpus,
                              const std::vector<int64_t>& rows) {
  const NodeSet& set = *entry.set;
  GpuOperation op = MakeOperation(entry.signatures.front(), set.ranks, rows);
  op.slot = slot;
  op.generation = entry.reported;
  op.tensors = entry.gpu_tensors;
  if (op.kind == Kind::kAllreduce) return op;
  for (size_t i = 0; i < op.members.size(); ++i) op.members[i].gpu = gpus[i];
  for (size_t i = 0; i < set.here.size(); ++i) {
    op.members[PositionOf(entry, i)].tensor = static_cast<uint32_t>(i);
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
