// ExecutorEpoch: ranks that call NCCL themselves, each on its own GPU.
//
// A rank announces its GPU (session::GpuSharing::kOwn). If all local members of
// a process set have submitted tensors on such GPUs, and no two on the same
// one, the operation becomes a run of the ranks: its plan names a communicator,
// which belongs to the process set and its members' GPUs. Tickets fix the
// order, so all ranks call NCCL in the same one. Over several nodes the plan of
// an allgather or alltoall also has the sizes of all members' tensors.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/gpu/nccl/nccl.h"
#include "worker/core/operations/executor_epoch.h"
#include "worker/core/operations/layout.h"

namespace maypole::worker {

absl::StatusOr<OpenedGpuMemory> ExecutorEpoch::OwnGpu(
    const LocalMember& member, const session::GpuMemoryRequest& request) {
  if (!communicators_enabled_) {
    return absl::UnavailableError(
        "the executors of this job have no NCCL, or not all the same one "
        "(event=no_nccl in the logs of the agents and the coordinator)");
  }
  if (request.nccl_version != nccl_version_) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", member.rank, " has NCCL ",
                     nccl::NcclVersion(static_cast<int>(request.nccl_version)),
                     ", the executors have NCCL ",
                     nccl::NcclVersion(static_cast<int>(nccl_version_)),
                     "; install the same version for all ranks, or name one in "
                     "MAYPOLE_NCCL_LIBRARY"));
  }
  Uuid uuid;
  std::copy(std::begin(request.uuid), std::end(request.uuid), uuid.begin());
  const auto [it, added] =
      own_gpus_.emplace(uuid, static_cast<uint32_t>(own_gpus_.size()));
  if (it->second < kMaxGpus) return OpenedGpuMemory{.gpu = it->second};
  own_gpus_.erase(it);
  return absl::ResourceExhaustedError(
      absl::StrCat("a job may use ", kMaxGpus, " GPUs of a node"));
}

bool ExecutorEpoch::AnyIsOwn(const std::vector<GpuTensor>& tensors) const {
  return std::any_of(tensors.begin(), tensors.end(), [&](const GpuTensor& t) {
    return gpu_memories_.at(t.memory).own;
  });
}

bool ExecutorEpoch::RanksCanRun(const std::vector<GpuTensor>& tensors) const {
  return !tensors.empty() && GpusOf(tensors).size() == tensors.size() &&
         std::all_of(tensors.begin(), tensors.end(), [&](const GpuTensor& t) {
           return gpu_memories_.at(t.memory).own;
         });
}

absl::Status ExecutorEpoch::RunOnRanks(uint32_t slot, const SlotEntry& entry) {
  std::optional<uint32_t> communicator;
  if (RanksCanRun(entry.gpu_tensors)) {
    communicator =
        LocalRankCommunicator(entry.set, GpuOfEach(entry.gpu_tensors));
  }
  if (!communicator) {
    actions_->push_back(RunOnHost{slot, entry.reported});
    return absl::OkStatus();
  }
  absl::Status s = runs_.AddOnRanks(slot, entry, *communicator);
  if (!s.ok()) return s;
  IssueRuns();
  return absl::OkStatus();
}

absl::Status ExecutorEpoch::RunOnRanks(const proto::Run& m) {
  const RankCommunicator& c = rank_communicators_.at(m.communicator());
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

// --- Communicators -----------------------------------------------------------

std::optional<uint32_t> ExecutorEpoch::LocalRankCommunicator(
    const SharedSet& set, const std::vector<uint32_t>& gpus) {
  const auto key = std::make_pair(set->id, gpus);
  const auto it = local_rank_communicators_.find(key);
  if (it != local_rank_communicators_.end()) return it->second;
  const std::optional<uint32_t> number = NextLocalCommunicator();
  if (!number) return number;
  local_rank_communicators_.emplace(key, *number);
  rank_communicators_.emplace(*number, RankCommunicator{set, gpus});
  actions_->push_back(MakeCommunicatorId{*number});
  return *number;
}

absl::Status ExecutorEpoch::OnRankCommunicator(const proto::Communicator& m) {
  const SharedSet set = sets_.Find(m.process_set());
  RankCommunicator c{set, {m.gpus().begin(), m.gpus().end()}};
  const bool valid = communicators_enabled_ && m.number() > 0 &&
                     m.number() <= kMaxCommunicators && set != nullptr &&
                     c.gpus.size() == set->locals.size() &&
                     m.size() == set->ranks.size();
  if (!valid || !rank_communicators_.emplace(m.number(), std::move(c)).second) {
    return absl::InternalError(absl::StrCat(
        "the coordinator's communicator ", m.number(), " of process set ",
        m.process_set(), " is not valid, or was announced before"));
  }
  if (m.first() == 0) actions_->push_back(MakeCommunicatorId{m.number()});
  return absl::OkStatus();
}

bool ExecutorEpoch::ConnectRanks(uint32_t number, const std::string& id) {
  const auto it = rank_communicators_.find(number);
  if (it == rank_communicators_.end()) return false;
  const NodeSet& set = *it->second.set;
  auto connect = session::Make<session::ConnectGpu>();
  connect.number = number;
  connect.size = static_cast<uint32_t>(set.size());
  connect.id_bytes =
      static_cast<uint32_t>(std::min(id.size(), sizeof(connect.id)));
  std::copy_n(id.begin(), connect.id_bytes, connect.id);
  for (size_t i = 0; i < set.locals.size(); ++i) {
    const auto client = clients_.find(set.locals[i]);
    if (client == clients_.end()) continue;  // it has left
    connect.rank = static_cast<uint32_t>(set.PositionOf(set.here[i]));
    connect.gpu = it->second.gpus[i];
    actions_->push_back(ReplyClient{client->second, connect});
  }
  return true;
}

}  // namespace maypole::worker
