// CoordinatorEpoch: the GPUs that reduce together by NCCL.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "coordinator/core/coordinator_epoch.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {

// NCCL refuses to connect GPUs whose processes have different versions of it.
uint32_t CoordinatorEpoch::AgreedNccl(JobOutput* out) const {
  const uint32_t first = nccl_versions_.front();
  for (size_t i = 1; i < members_.size(); ++i) {
    if (nccl_versions_[i] == first) continue;
    out->Warn(absl::StrCat(LogPrefix("no_nccl"), " ", members_[0].node, "=",
                           first, " ", members_[i].node, "=", nccl_versions_[i],
                           " reason=\"the nodes' executors must have the same "
                           "version of NCCL; CUDA tensors are copied through "
                           "host memory\""));
    return 0;
  }
  return first;
}

void CoordinatorEpoch::TellCommunicators(JobOutput* out) {
  if (const auto shared = communicators_.TakeShared()) {
    out->Warn(absl::StrCat(
        LogPrefix("shared_gpu"), " gpu=", UuidText(shared->uuid), " node=",
        members_[shared->node].node, " other=", members_[shared->other].node,
        " reason=\"NCCL cannot connect a GPU with itself; CUDA tensors of "
        "ranks that share a GPU between nodes are copied through host "
        "memory\""));
  }
  for (const Communicator& c : communicators_.TakeNew()) {
    for (const Communicator::Part& part : c.parts) {
      SendCommunicator(c, part, out);
    }
  }
}

void CoordinatorEpoch::SendCommunicator(const Communicator& c,
                                        const Communicator::Part& part,
                                        JobOutput* out) {
  proto::CoordinatorMessage message;
  proto::Communicator* m = message.mutable_communicator();
  m->set_epoch(number_);
  m->set_number(c.number);
  m->set_size(c.size);
  m->set_first(part.first);
  m->mutable_gpus()->Assign(part.gpus.begin(), part.gpus.end());
  if (c.ranks != nullptr) {
    m->set_ranks_call_nccl(true);
    m->set_process_set(c.ranks->id);
  }
  for (const Communicator::Part& p : c.parts) {
    proto::CommunicatorPart* every = m->add_parts();
    every->set_node(static_cast<uint32_t>(p.node));
    every->set_first(p.first);
    every->mutable_gpus()->Assign(p.gpus.begin(), p.gpus.end());
  }
  ToNode(part.node, std::move(message), out);
}

absl::Status CoordinatorEpoch::OnCommunicatorId(
    size_t node, const proto::CommunicatorId& message, JobOutput* out) {
  Communicator* const c = communicators_.Get(message.number());
  if (c == nullptr || c->has_id || c->parts.empty() || c->parts.front().node != node ||
      message.id().empty() || message.id().size() > kMaxCommunicatorIdBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "an id of ", message.id().size(), " bytes for communicator ",
        message.number(), ", which this node must not give"));
  }
  c->has_id = true;
  proto::CoordinatorMessage m;
  *m.mutable_communicator_id() = message;
  for (const Communicator::Part& part : c->parts) ToNode(part.node, m, out);
  return absl::OkStatus();
}

absl::Status CoordinatorEpoch::OnRankGpu(size_t node,
                                         const proto::RankGpu& message) {
  const std::vector<uint32_t>& ranks = members_[node].ranks;
  const bool here =
      std::find(ranks.begin(), ranks.end(), message.rank()) != ranks.end();
  if (!here || message.gpu() >= kMaxGpus ||
      message.uuid().size() != kGpuUuidBytes ||
      message.bytes() > kMaxGpuMemories * kMaxGpuMemoryBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", message.rank(), " is said to use GPU ", message.gpu(),
        ", with a UUID of ", message.uuid().size(), " bytes, and ",
        message.bytes(), " bytes of its memory"));
  }
  absl::Status status = communicators_.NoteGpu(node, message);
  if (status.ok()) rank_gpus_[{message.rank(), message.uuid()}] = message;
  return status;
}

}  // namespace maypole::coordinator
