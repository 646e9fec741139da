#include "worker/core/gpus/gpu_runs.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/board/gpu_place.h"
#include "common/gather_room.h"
#include "worker/core/limits.h"
#include "worker/core/operations/gpu_operation.h"
#include "worker/core/operations/layout.h"

namespace maypole::worker {

// The ranks' words come from shared memory: accepts only places within their
// memories, and only operations that GPUs can execute.
absl::Status GpuRuns::ReadTensors(const ReadySlot& ready,
                                  SlotEntry* entry) const {
  entry->gpu_tensors.clear();
  entry->gpu_rooms.clear();
  if (ready.gpu_places.empty()) return absl::OkStatus();
  const bool gathers = Gathers(entry->kind);
  for (size_t i = 0; i < entry->set->locals.size(); ++i) {
    const uint64_t bytes = ready.signatures[i].Bytes();
    const uint64_t room = gathers ? ready.gpu_rooms[i] : 0;
    const uint64_t result_at = gathers ? GpuResultAt(bytes) : bytes;
    const GpuPlace place = UnpackGpuPlace(ready.gpu_places[i]);
    const GpuMemoryId id{entry->set->locals[i], place.number};
    const RankGpuMemories::Memory* const memory = memories_.FindOpen(id);
    const bool valid =
        memory != nullptr && memory->gpu == place.gpu &&
        (memory->own
             ? place.offset == 0 && room <= kMaxGpuMemoryBytes
             : room <= memory->bytes && result_at <= memory->bytes - room &&
                   place.offset <= memory->bytes - room - result_at);
    if (!valid) {
      return absl::InvalidArgumentError(absl::StrCat(
          "rank ", entry->set->here[i], " has submitted ", entry->Text(),
          " with ", bytes, " bytes and room for ", room, " at offset ",
          place.offset, " of GPU memory ", place.number,
          ", where it has not got them; has a process overwritten its shared "
          "memory?"));
    }
    entry->gpu_tensors.push_back(
        {id, place.offset, place.gpu,
         gathers ? place.offset + result_at : kInPlace});
    if (gathers) entry->gpu_rooms.push_back(room);
  }
  const Signature& s = ready.signatures.front();
  const bool one_gpu =
      !entry->set->negotiated() && GpusOf(entry->gpu_tensors).size() == 1;
  const bool has_type = !Reduces(s.kind) || HasNcclType(s.dtype);
  if ((gathers || (s.kind != Kind::kBarrier && s.Elements() > 0)) &&
      (one_gpu || (nccl_.enabled && has_type))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(entry->Text(),
                   " cannot run on GPUs; has a process overwritten its "
                   "shared memory?"));
}

absl::Status GpuRuns::TakeTensors(const ReadySlot& ready,
                                  SlotEntry* entry) const {
  if (absl::Status s = ReadTensors(ready, entry); !s.ok()) return s;
  entry->ranks_call_nccl = memories_.RanksCanRun(entry->gpu_tensors);
  // Ranks' own GPUs and memory that is shared cannot be in one operation.
  if (!entry->ranks_call_nccl && memories_.AnyIsOwn(entry->gpu_tensors)) {
    entry->gpu_tensors.clear();
    entry->gpu_rooms.clear();
  }
  return absl::OkStatus();
}

absl::Status GpuRuns::OnReady(const ReadySlot& ready, SlotEntry* entry) {
  if (ready.generation <= entry->reported || ready.gpu_places.empty()) {
    return absl::OkStatus();
  }
  const std::string node = info_.OwnNodeText();
  if (absl::Status s = CheckReadySlot(ready, *entry, node); !s.ok()) return s;
  if (entry->on_gpu != 0) return SubmittedTooEarly(ready, *entry, node);
  entry->reported = entry->answered = ready.generation;
  std::vector<std::pair<int, Signature>> all;
  for (size_t i = 0; i < ready.signatures.size(); ++i) {
    all.emplace_back(entry->set->here[i], ready.signatures[i]);
  }
  const std::string mismatch = DescribeMismatch(entry->name, all);
  if (!mismatch.empty()) {
    output_.Add(FailSlot{ready.slot, ready.generation,
                         Code::kFailedPrecondition, mismatch});
    return absl::OkStatus();
  }
  if (const int rank = left_.MemberOf(*entry->set); rank >= 0) {
    FailForDeparture(ready.slot, ready.generation, rank);
    return absl::OkStatus();
  }
  if (absl::Status s = ReadTensors(ready, entry); !s.ok()) return s;
  entry->signatures = ready.signatures;
  entry->splits = ready.splits;
  const bool gathers = Gathers(entry->kind);
  const std::vector<int64_t> rows =
      gathers ? LocalRows(*entry) : std::vector<int64_t>();
  const uint64_t row_bytes = entry->signatures.front().RowBytes();
  if (gathers &&
      !ResultsHaveRoom(entry->kind, row_bytes, rows, RoomsOf(*entry))) {
    output_.Add(RunOnHost{ready.slot, ready.generation});
    return absl::OkStatus();
  }
  return memories_.AnyIsOwn(entry->gpu_tensors)
             ? RunOnLocalRanks(ready.slot, *entry)
             : RunOnLocalGpus(ready.slot, *entry, rows);
}

absl::Status GpuRuns::RunOnLocalGpus(uint32_t slot, const SlotEntry& entry,
                                     const std::vector<int64_t>& rows) {
  const std::vector<uint32_t> gpus = GpusOf(entry.gpu_tensors);
  const auto communicator = communicators_.Local(gpus);
  if (!communicator) {
    output_.Add(RunOnHost{slot, entry.reported});
    return absl::OkStatus();
  }
  std::vector<uint32_t> member_gpus(entry.set->ranks.size(), 0);
  for (size_t i = 0; i < entry.gpu_tensors.size(); ++i) {
    const auto at =
        static_cast<size_t>(entry.set->PositionOf(entry.set->here[i]));
    member_gpus[at] = static_cast<uint32_t>(
        std::find(gpus.begin(), gpus.end(), entry.gpu_tensors[i].gpu) -
        gpus.begin());
  }
  GpuRun run{.communicator = *communicator};
  run.operations.push_back(MakeGpuOperation(slot, entry, member_gpus, rows));
  Begin(std::move(run));
  return absl::OkStatus();
}

absl::Status GpuRuns::Run(const proto::Run& m) {
  if (const auto* ranks = communicators_.FindOfRanks(m.communicator())) {
    return RunOnRanks(m, *ranks);
  }
  const GpuCommunicator* const c = communicators_.Find(m.communicator());
  if (c == nullptr) {
    return absl::InternalError(
        absl::StrCat("the coordinator's run ", m.run(), " is on communicator ",
                     m.communicator(), ", which it has not announced"));
  }
  absl::StatusOr<GpuRun> run = runs_.AddOnGpus(m, *c, &slots_);
  if (!run.ok()) return run.status();
  Begin(*std::move(run));
  return absl::OkStatus();
}

void GpuRuns::Begin(GpuRun run) {
  for (const GpuOperation& op : run.operations) {
    slots_.Get(op.slot)->on_gpu = op.generation;
  }
  output_.Add(RunOnGpus{std::move(run)});
}

absl::Status GpuRuns::OnEnded(const GpuRun& run, const absl::Status& status) {
  for (const GpuOperation& op : run.operations) {
    SlotEntry* const entry = slots_.Get(op.slot);
    if (entry == nullptr || entry->on_gpu != op.generation) continue;
    entry->on_gpu = 0;
    // The memory of a rank that has left is closed.
    const int left = left_.MemberOf(*entry->set);
    if (status.ok() && entry->set->negotiated() && Gathers(entry->kind)) {
      if (absl::Status s = runs_.EndOnGpus(op.slot); !s.ok()) return s;
      runs_.Issue(&output_);
    } else if (status.ok()) {
      output_.Add(CommitSlot{op.slot, op.generation});
    } else if (!entry->set->negotiated() && left >= 0) {
      FailForDeparture(op.slot, op.generation, left,
                       absl::StrCat(" (", status.message(), ")"));
    } else {
      failed_ = true;
      // A lost node is not NCCL's fault.
      const bool of_nccl =
          run.communicator != 0 && !absl::IsUnavailable(status);
      const absl::string_view hint = of_nccl ? kNoNcclHint : "";
      return absl::Status(
          status.code(),
          absl::StrCat(entry->Text(), " failed on the GPU of ",
                       info_.OwnNodeText(), ": ", status.message(), hint));
    }
  }
  return absl::OkStatus();
}

absl::Status GpuRuns::RunOnLocalRanks(uint32_t slot, const SlotEntry& entry) {
  std::optional<uint32_t> communicator;
  if (memories_.RanksCanRun(entry.gpu_tensors)) {
    communicator =
        communicators_.LocalOfRanks(entry.set, GpuOfEach(entry.gpu_tensors));
  }
  if (!communicator) {
    output_.Add(RunOnHost{slot, entry.reported});
    return absl::OkStatus();
  }
  absl::Status s = runs_.AddOnRanks(slot, entry, *communicator);
  if (!s.ok()) return s;
  runs_.Issue(&output_);
  return absl::OkStatus();
}

absl::Status GpuRuns::RunOnRanks(const proto::Run& m,
                                 const GpuCommunicators::OfRanks& c) {
  for (const proto::RunOperation& op : m.operations()) {
    uint32_t slot = 0;
    const SlotEntry* const entry = slots_.Resolve(
        op.id(), op.has_identity() ? &op.identity() : nullptr, &slot);
    if (entry == nullptr || entry->set != c.set || !entry->ranks_call_nccl ||
        GpuOfEach(entry->gpu_tensors) != c.gpus) {
      return Misfit(m,
                    absl::StrCat("its tensors do not belong to communicator ",
                                 m.communicator()));
    }
  }
  return runs_.AddOnRanks(m, &slots_);
}

void GpuRuns::FailForDeparture(uint32_t slot, uint32_t generation, int rank,
                               absl::string_view detail) {
  output_.Add(FailSlot{
      slot, generation, Code::kAborted,
      absl::StrCat(slots_.Get(slot)->Text(), ": rank ", rank,
                   " has shut down; operations that need it cannot run",
                   detail)});
}

}  // namespace maypole::worker
