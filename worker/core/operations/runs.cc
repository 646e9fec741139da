#include "worker/core/operations/runs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/gather_room.h"
#include "worker/core/limits.h"
#include "worker/core/operations/gpu_operation.h"
#include "worker/core/operations/layout.h"

namespace maypole::worker {
namespace {

constexpr uint64_t kAlignment = 64;

uint64_t Aligned(uint64_t n) {
  return (n + kAlignment - 1) / kAlignment * kAlignment;
}

// Sets what all operations of a run have in common.
void Begin(const SlotEntry& entry, RunSpec* spec) {
  const Signature& s = entry.signatures.front();
  spec->kind = s.kind;
  spec->dtype = s.dtype;
  spec->members = entry.set->mask();
  spec->nodes = entry.set->nodes;
  if (!spec->reduces()) return;
  spec->op = s.op;
  spec->finish =
      OverNodes(s.dtype, s.op, EpilogueOf(s.op, s.postscale, entry.set->size()))
          .over_nodes;
}

// Returns the entry of a run's operation, which this node must have reported as
// present.
absl::StatusOr<SlotEntry*> Resolve(const proto::Run& run,
                                   const proto::RunOperation& op,
                                   SlotTable* slots, uint32_t* slot) {
  SlotEntry* const entry = slots->Resolve(
      op.id(), op.has_identity() ? &op.identity() : nullptr, slot);
  if (entry == nullptr) {
    return Misfit(run, absl::StrCat("operation ", op.id(), " is not known"));
  }
  const std::string name =
      absl::StrCat(std::string(Name(entry->kind)), " '", entry->name, "'");
  const uint32_t reported = entry->CountOf(entry->reported);
  if (reported != op.generation()) {
    return Misfit(run, absl::StrCat(name, " is at generation ", reported,
                                    ", not ", op.generation()));
  }
  if (op.generation() == 0) {  // a run needs a signature
    return Misfit(run, absl::StrCat(name, " was never reported"));
  }
  return entry;
}

absl::Status CheckCount(const proto::Run& run) {
  const int count = run.operations_size();
  if (count >= 1 && count <= static_cast<int>(kMaxRunOperations)) {
    return absl::OkStatus();
  }
  return Misfit(run, absl::StrCat("it has ", count, " operations"));
}

// The members' rows, as MakeGpuOperation() takes them.
std::vector<int64_t> RowsOf(const RunSpec& spec, const NodeSet& set) {
  if (spec.kind == Kind::kAlltoall) return spec.splits;
  std::vector<int64_t> rows;
  if (spec.kind != Kind::kAllgather) return rows;
  for (const int rank : set.ranks) {
    rows.push_back(spec.first_dims[static_cast<size_t>(rank)]);
  }
  return rows;
}

absl::Status BadOnGpus(const proto::Run& run, const SlotEntry& entry,
                       absl::string_view what) {
  return Misfit(run, absl::StrCat("it runs '", entry.name, "' on communicator ",
                                  run.communicator(), ", ", what));
}

// An allgather or alltoall must have the sizes that this node has reported, and
// room for its results.
absl::Status CheckRows(const proto::Run& run, const SlotEntry& entry,
                       const std::vector<int64_t>& rows) {
  if (rows.empty()) return absl::OkStatus();
  const std::vector<int64_t> reported = LocalRows(entry);
  for (const int rank : entry.set->here) {
    const auto at = static_cast<size_t>(entry.set->PositionOf(rank));
    // LayOutAlltoall() has compared splits.
    if (entry.kind == Kind::kAllgather && rows[at] != reported[at]) {
      return BadOnGpus(run, entry,
                       absl::StrCat("with other rows of rank ", rank));
    }
  }
  if (ResultsHaveRoom(entry.kind, entry.signatures.front().RowBytes(), rows,
                      RoomsOf(entry))) {
    return absl::OkStatus();
  }
  return BadOnGpus(run, entry, "where its result has no room");
}

// The communicator must have this node's tensors where the run says.
absl::Status CheckOnGpus(const proto::Run& run, const GpuCommunicator& c,
                         const SlotEntry& entry) {
  const auto bad = [&](absl::string_view what) {
    return BadOnGpus(run, entry, what);
  };
  const NodeSet& set = *entry.set;
  const auto& gpus = run.member_gpus();
  if (entry.gpu_tensors.empty() || GpusOf(entry.gpu_tensors) != c.gpus) {
    return bad("which does not have the GPUs of its tensors");
  }
  if (gpus.size() != (entry.kind == Kind::kAllreduce ? 0 : set.size()) ||
      std::any_of(gpus.begin(), gpus.end(),
                  [&](uint32_t gpu) { return gpu >= c.size; })) {
    return bad("but does not say on which GPUs its ranks are");
  }
  for (size_t i = 0; i < set.here.size(); ++i) {
    const int at = set.PositionOf(set.here[i]);
    const auto gpu =
        std::find(c.gpus.begin(), c.gpus.end(), entry.gpu_tensors[i].gpu) -
        c.gpus.begin();
    if (!gpus.empty() && gpus[at] != c.first + static_cast<uint32_t>(gpu)) {
      return bad(absl::StrCat("with another GPU of rank ", set.here[i]));
    }
  }
  return absl::OkStatus();
}

}  // namespace

RunQueue::RunQueue(uint32_t job_size, uint32_t node, uint32_t records)
    : job_size_(job_size), node_(node), generations_(records, 0) {
  for (uint32_t i = 0; i < records; ++i) free_.push_back(i);
  for (uint32_t i = 0; i < kMatrices; ++i) free_matrices_.push_back(i);
}

absl::Status RunQueue::CheckNumber(const proto::Run& run) const {
  if (run.run() == last_run_ + 1) return CheckCount(run);
  return Misfit(run, absl::StrCat("run ", last_run_ + 1, " was expected"));
}

absl::StatusOr<GpuRun> RunQueue::AddOnGpus(const proto::Run& run,
                                           const GpuCommunicator& c,
                                           SlotTable* slots) {
  if (absl::Status s = CheckNumber(run); !s.ok()) return s;
  absl::StatusOr<RunSpec> spec = LayOut(run, slots);
  if (!spec.ok()) return spec.status();
  GpuRun out{.communicator = c.number};
  const std::vector<uint32_t> gpus(run.member_gpus().begin(),
                                   run.member_gpus().end());
  for (const PlanOperation& op : spec->operations) {
    const SlotEntry& entry = *slots->Get(op.slot);
    const std::vector<int64_t> rows = RowsOf(*spec, *entry.set);
    absl::Status s = CheckOnGpus(run, c, entry);
    if (s.ok()) s = CheckRows(run, entry, rows);
    if (!s.ok()) return s;
    out.operations.push_back(MakeGpuOperation(op.slot, entry, gpus, rows));
  }
  last_run_ = run.run();
  if (Gathers(spec->kind)) {
    spec->site = RunSite::kExecutors;
    spec->bytes = spec->tensor_bytes = 0;
    spec->blocks.clear();
    on_gpus_[spec->operations.front().slot] = *std::move(spec);
  }
  return out;
}

absl::Status RunQueue::EndOnGpus(uint32_t slot) {
  const auto it = on_gpus_.find(slot);
  if (it == on_gpus_.end()) return absl::OkStatus();
  RunSpec spec = std::move(it->second);
  on_gpus_.erase(it);
  return Queue(std::move(spec));
}

absl::Status RunQueue::Add(const proto::Run& run, SlotTable* slots) {
  if (absl::Status s = CheckNumber(run); !s.ok()) return s;
  const absl::Status added = AddScheduled(run, slots);
  if (added.ok()) last_run_ = run.run();
  return added;
}

absl::StatusOr<std::vector<uint32_t>> RunQueue::AddSmall(const proto::Run& run,
                                                         SlotTable* slots) {
  if (absl::Status s = CheckNumber(run); !s.ok()) return s;
  absl::StatusOr<RunSpec> spec = LayOut(run, slots);
  if (!spec.ok()) return spec.status();
  if (!spec->reduces()) return Misfit(run, "it is no reduction");
  last_run_ = run.run();
  std::vector<uint32_t> out;
  for (const PlanOperation& op : spec->operations) out.push_back(op.slot);
  return out;
}

absl::Status RunQueue::AddScheduled(const proto::Run& run, SlotTable* slots) {
  absl::StatusOr<RunSpec> spec = LayOut(run, slots);
  if (!spec.ok()) return spec.status();
  return Queue(*std::move(spec));
}

absl::Status RunQueue::Queue(RunSpec spec) {
  if (waiting_.size() >= kMaxQueuedRuns) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kMaxQueuedRuns, " runs are queued for this node's ranks"));
  }
  waiting_.push_back(std::move(spec));
  return absl::OkStatus();
}

absl::Status RunQueue::AddOnRanks(const proto::Run& run, SlotTable* slots) {
  if (absl::Status s = Add(run, slots); !s.ok()) return s;
  RunSpec& spec = waiting_.back();
  spec.site = RunSite::kRanks;
  spec.communicator = run.communicator();
  const SlotEntry& entry = *slots->Get(spec.operations.front().slot);
  return CheckRows(run, entry, RowsOf(spec, *entry.set));
}

absl::Status RunQueue::AddOnRanks(uint32_t slot, const SlotEntry& entry,
                                  uint32_t communicator) {
  RunSpec spec{.site = RunSite::kRanks, .communicator = communicator};
  Begin(entry, &spec);
  spec.operations.push_back({slot, entry.reported, 0});
  return Queue(std::move(spec));
}

absl::StatusOr<RunSpec> RunQueue::LayOut(const proto::Run& run,
                                         SlotTable* slots) const {
  RunSpec spec;
  const SlotEntry* first = nullptr;
  for (const proto::RunOperation& op : run.operations()) {
    uint32_t slot = 0;
    const absl::StatusOr<SlotEntry*> found = Resolve(run, op, slots, &slot);
    if (!found.ok()) return found.status();
    SlotEntry* const entry = *found;
    entry->answered = entry->reported;
    if (first == nullptr) {
      first = entry;
      Begin(*entry, &spec);
    } else if (entry->set != first->set || entry->kind != first->kind) {
      return Misfit(run, "its operations are of several kinds");
    }
    if (absl::Status s = Place(run, *entry, slot, &spec); !s.ok()) return s;
  }
  if (Gathers(spec.kind)) {
    spec.tensor_bytes = spec.bytes;
  }
  if (spec.kind == Kind::kBroadcast && spec.bytes > 0) {
    const int root = first->set->PositionOf(first->signatures.front().root);
    spec.blocks = {{first->set->node_of[static_cast<size_t>(root)], kAllNodes,
                    0, spec.bytes}};
  }
  return spec;
}

absl::Status RunQueue::Place(const proto::Run& run, const SlotEntry& entry,
                             uint32_t slot, RunSpec* spec) const {
  const Signature& s = entry.signatures.front();
  const uint64_t offset = Aligned(spec->bytes);
  spec->operations.push_back({slot, entry.reported, offset});
  switch (s.kind) {
    case Kind::kBarrier:
      return absl::OkStatus();
    case Kind::kAllgather:
      return LayOutGather(run, *entry.set, job_size_, s, spec);
    case Kind::kAlltoall:
      return LayOutAlltoall(run, entry, node_, spec);
    case Kind::kReducescatter:
      LayOutScatter(*entry.set, s, offset, spec);
      break;
    default:
      break;
  }
  spec->tensor_bytes += s.Bytes();
  spec->bytes = offset + s.Bytes();
  if (spec->bytes <= kMaxTensorBytes) return absl::OkStatus();
  return Misfit(run, "it is too large");
}

void RunQueue::Free(uint32_t record) {
  if (record >= generations_.size()) return;
  free_.push_back(record);
  if (const auto it = matrix_of_.find(record); it != matrix_of_.end()) {
    free_matrices_.push_back(it->second);
    matrix_of_.erase(it);
  }
}

std::optional<RunSpec> RunQueue::Take() {
  if (waiting_.empty() || free_.empty()) return std::nullopt;
  const bool splits = !waiting_.front().splits.empty();
  if (splits && free_matrices_.empty()) return std::nullopt;
  RunSpec spec = std::move(waiting_.front());
  waiting_.pop_front();
  spec.record = free_.front();
  free_.pop_front();
  spec.generation = ++generations_[spec.record];
  if (splits) {
    spec.matrix = free_matrices_.front();
    free_matrices_.pop_front();
    matrix_of_[spec.record] = spec.matrix;
  }
  return spec;
}

}  // namespace maypole::worker
