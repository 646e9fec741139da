#include "worker/core/operations/runs.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/core/limits.h"
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
  spec->finish.divisor = s.op == Op::kAverage ? entry.set->size() : 1;
  spec->finish.scale = s.postscale;
}

// The entry of a run's operation, which this node has reported as present.
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

}  // namespace

GpuOperation MakeGpuOperation(uint32_t slot, const SlotEntry& entry) {
  const Signature& s = entry.signatures.front();
  return {.slot = slot,
          .generation = entry.reported,
          .kind = s.kind,
          .dtype = s.dtype,
          .op = s.op,
          .elements = static_cast<uint64_t>(s.Elements()),
          .prescale = s.prescale,
          .divisor = s.op == Op::kAverage ? entry.set->size() : 1,
          .postscale = s.postscale,
          .tensors = entry.gpu_tensors};
}

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
                                           SlotTable* slots) {
  if (absl::Status s = CheckNumber(run); !s.ok()) return s;
  GpuRun out{.communicator = run.communicator()};
  for (const proto::RunOperation& op : run.operations()) {
    uint32_t slot = 0;
    const absl::StatusOr<SlotEntry*> entry = Resolve(run, op, slots, &slot);
    if (!entry.ok()) return entry.status();
    if ((*entry)->gpu_tensors.empty()) {
      return Misfit(run, absl::StrCat("the tensors of '", (*entry)->name,
                                      "' are not on GPUs here"));
    }
    (*entry)->answered = (*entry)->reported;
    out.operations.push_back(MakeGpuOperation(slot, **entry));
  }
  last_run_ = run.run();
  return out;
}

absl::Status RunQueue::Add(const proto::Run& run, SlotTable* slots) {
  if (absl::Status s = CheckNumber(run); !s.ok()) return s;
  if (waiting_.size() >= kMaxQueuedRuns) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kMaxQueuedRuns, " runs are queued for this node's ranks"));
  }
  absl::StatusOr<RunSpec> spec = LayOut(run, slots);
  if (!spec.ok()) return spec.status();
  last_run_ = run.run();
  waiting_.push_back(*std::move(spec));
  return absl::OkStatus();
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
  const bool splits = waiting_.front().kind == Kind::kAlltoall;
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
