#include "worker/core/runs.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/core/limits.h"

namespace maypole::worker {
namespace {

constexpr uint64_t kAlignment = 64;

uint64_t Aligned(uint64_t n) {
  return (n + kAlignment - 1) / kAlignment * kAlignment;
}

absl::Status Lost(const proto::Run& run, const std::string& what) {
  return absl::InternalError(absl::StrCat(
      "the coordinator's run ", run.run(), " does not fit this node: ", what,
      "; this is a bug in Maypole, please report it with the logs"));
}

}  // namespace

RunQueue::RunQueue(std::vector<uint32_t> node_of_rank, uint32_t records)
    : node_of_rank_(std::move(node_of_rank)), generations_(records, 0) {
  for (uint32_t i = 0; i < records; ++i) free_.push_back(i);
}

absl::Status RunQueue::Add(const proto::Run& run, SlotTable* slots) {
  if (run.run() != last_run_ + 1) {
    return Lost(run, absl::StrCat("run ", last_run_ + 1, " was expected"));
  }
  if (waiting_.size() >= kMaxQueuedRuns) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kMaxQueuedRuns, " runs wait for this node's ranks"));
  }
  absl::StatusOr<RunSpec> spec = LayOut(run, slots);
  if (!spec.ok()) return spec.status();
  last_run_ = run.run();
  waiting_.push_back(*std::move(spec));
  return absl::OkStatus();
}

absl::StatusOr<RunSpec> RunQueue::LayOut(const proto::Run& run,
                                         SlotTable* slots) const {
  const int count = run.operations_size();
  if (count < 1 || count > static_cast<int>(kMaxRunOperations)) {
    return Lost(run, absl::StrCat("it has ", count, " operations"));
  }
  RunSpec spec;
  Signature first;
  for (const proto::RunOperation& op : run.operations()) {
    uint32_t slot = 0;
    SlotEntry* entry = slots->Resolve(
        op.id(), op.has_identity() ? &op.identity() : nullptr, &slot);
    if (entry == nullptr) {
      return Lost(run, absl::StrCat("operation ", op.id(), " is not known"));
    }
    if (entry->reported != op.generation()) {
      return Lost(
          run, absl::StrCat(std::string(Name(entry->kind)), " '", entry->name,
                            "' is at generation ", entry->reported, ", not ",
                            op.generation()));
    }
    entry->answered = op.generation();
    const Signature& s = entry->signatures.front();
    if (spec.operations.empty()) first = s;
    const uint64_t offset = Aligned(spec.bytes);
    spec.operations.push_back({slot, op.generation(), offset});
    if (s.kind == Kind::kBarrier) continue;
    spec.bytes = offset + s.Bytes();
    if (spec.bytes > kMaxTensorBytes) return Lost(run, "it is too large");
  }
  spec.kind = first.kind;
  spec.dtype = first.dtype;
  if (first.kind == Kind::kAllreduce) {
    spec.finish.divisor = first.op == Op::kAverage
                              ? static_cast<int64_t>(node_of_rank_.size())
                              : 1;
    spec.finish.scale = first.postscale;
  }
  if (first.kind == Kind::kBroadcast) {
    if (static_cast<size_t>(first.root) >= node_of_rank_.size()) {
      return Lost(run, absl::StrCat("its root is rank ", first.root));
    }
    spec.blocks = {{node_of_rank_[first.root], 0, spec.bytes}};
  }
  if (first.kind == Kind::kAllgather) {
    if (absl::Status s = LayOutGather(run, first, &spec); !s.ok()) return s;
  }
  return spec;
}

absl::Status RunQueue::LayOutGather(const proto::Run& run, const Signature& s,
                                    RunSpec* spec) const {
  if (spec->operations.size() != 1 ||
      static_cast<size_t>(run.first_dims_size()) != node_of_rank_.size()) {
    return Lost(run, absl::StrCat("an allgather with ", run.operations_size(),
                                  " operations and ", run.first_dims_size(),
                                  " first dimensions"));
  }
  const uint64_t row = s.RowBytes();
  uint64_t end = 0;
  for (size_t rank = 0; rank < node_of_rank_.size(); ++rank) {
    const int64_t rows = run.first_dims(static_cast<int>(rank));
    const uint64_t begin = end;
    if (rows < 0 || (row > 0 && static_cast<uint64_t>(rows) >
                                    (kMaxTensorBytes - end) / row)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the result of an allgather may have 2^44 bytes; rank ",
                       rank, " brings ", rows, " rows of ", row, " bytes"));
    }
    end += static_cast<uint64_t>(rows) * row;
    spec->first_dims.push_back(rows);
    if (begin == end) continue;
    const uint32_t node = node_of_rank_[rank];
    if (!spec->blocks.empty() && spec->blocks.back().node == node) {
      spec->blocks.back().end = end;
    } else {
      spec->blocks.push_back({node, begin, end});
    }
  }
  spec->bytes = end;
  return absl::OkStatus();
}

void RunQueue::Free(uint32_t record) {
  if (record < generations_.size()) free_.push_back(record);
}

std::optional<RunSpec> RunQueue::Take() {
  if (waiting_.empty() || free_.empty()) return std::nullopt;
  RunSpec spec = std::move(waiting_.front());
  waiting_.pop_front();
  spec.record = free_.front();
  free_.pop_front();
  spec.generation = ++generations_[spec.record];
  return spec;
}

}  // namespace maypole::worker
