#include "worker/core/gpus/gpu_communicators.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/core/limits.h"

namespace maypole::worker {

absl::Status GpuCommunicators::OnCommunicator(const proto::Communicator& m) {
  announced_.push_back(m);
  if (m.ranks_call_nccl()) return OnCommunicatorOfRanks(m);
  GpuCommunicator c{.number = m.number(),
                    .size = m.size(),
                    .first = m.first(),
                    .gpus = {m.gpus().begin(), m.gpus().end()}};
  bool valid = nccl_.enabled && c.number > 0 && c.number <= kMaxCommunicators &&
               !c.gpus.empty() && c.first < c.size &&
               c.gpus.size() <= c.size - c.first && c.gpus.back() < kMaxGpus;
  for (size_t i = 1; i < c.gpus.size(); ++i) {
    valid = valid && c.gpus[i - 1] < c.gpus[i];
  }
  if (!valid || !of_gpus_.emplace(c.number, c).second) {
    return absl::InternalError(
        absl::StrCat("the coordinator's communicator ", c.number,
                     " is not valid, or was announced before"));
  }
  if (c.first == 0) output_.Add(MakeCommunicatorId{c.number});
  return absl::OkStatus();
}

absl::Status GpuCommunicators::OnIdMade(uint32_t number,
                                        const absl::StatusOr<std::string>& id) {
  if (!id.ok()) {
    return absl::Status(
        id.status().code(),
        absl::StrCat("NCCL cannot connect the GPUs of ", info_.OwnNodeText(),
                     ": ", id.status().message(), kNoNcclHint));
  }
  if (number > kMaxCommunicators) return Connect(number, *id);
  proto::ExecutorMessage message;
  message.mutable_communicator_id()->set_number(number);
  message.mutable_communicator_id()->set_id(*id);
  ids_[number] = message.communicator_id();
  output_.Send(std::move(message));
  return absl::OkStatus();
}

absl::Status GpuCommunicators::OnId(const proto::CommunicatorId& m) {
  ids_[m.number()] = m;
  ids_received_.insert(m.number());
  return Connect(m.number(), m.id());
}

absl::Status GpuCommunicators::Connect(uint32_t number, const std::string& id) {
  if (const OfRanks* const ranks = FindOfRanks(number)) {
    ConnectRanks(number, *ranks, id);
    return absl::OkStatus();
  }
  const auto it = of_gpus_.find(number);
  if (it == of_gpus_.end()) {
    return absl::InternalError(absl::StrCat(
        "the coordinator has sent an id of an unknown communicator ", number));
  }
  output_.Add(ConnectGpus{it->second, id});
  return absl::OkStatus();
}

const GpuCommunicator* GpuCommunicators::Find(uint32_t number) const {
  const auto it = of_gpus_.find(number);
  return it == of_gpus_.end() || number > kMaxCommunicators ? nullptr
                                                            : &it->second;
}

const GpuCommunicators::OfRanks* GpuCommunicators::FindOfRanks(
    uint32_t number) const {
  const auto it = of_ranks_.find(number);
  return it == of_ranks_.end() ? nullptr : &it->second;
}

std::optional<uint32_t> GpuCommunicators::Local(
    const std::vector<uint32_t>& gpus) {
  if (gpus.size() == 1) return 0;
  const auto it = local_.find(gpus);
  if (it != local_.end()) return it->second;
  const std::optional<uint32_t> number = NextLocal();
  if (!number) return number;
  const GpuCommunicator c{.number = *number,
                          .size = static_cast<uint32_t>(gpus.size()),
                          .first = 0,
                          .gpus = gpus};
  local_.emplace(gpus, c.number);
  of_gpus_.emplace(c.number, c);
  output_.Add(MakeCommunicatorId{c.number});
  return c.number;
}

std::optional<uint32_t> GpuCommunicators::NextLocal() const {
  const size_t count = local_.size() + local_of_ranks_.size();
  if (count >= kMaxLocalCommunicators) return std::nullopt;
  return kMaxCommunicators + 1 + static_cast<uint32_t>(count);
}

std::optional<uint32_t> GpuCommunicators::LocalOfRanks(
    const SharedSet& set, const std::vector<uint32_t>& gpus) {
  const auto key = std::make_pair(set->id, gpus);
  const auto it = local_of_ranks_.find(key);
  if (it != local_of_ranks_.end()) return it->second;
  const std::optional<uint32_t> number = NextLocal();
  if (!number) return number;
  local_of_ranks_.emplace(key, *number);
  of_ranks_.emplace(*number, OfRanks{set, gpus});
  output_.Add(MakeCommunicatorId{*number});
  return *number;
}

absl::Status GpuCommunicators::OnCommunicatorOfRanks(
    const proto::Communicator& m) {
  const SharedSet set = sets_.Find(m.process_set());
  OfRanks c{set, {m.gpus().begin(), m.gpus().end()}};
  const bool valid = nccl_.enabled && m.number() > 0 &&
                     m.number() <= kMaxCommunicators && set != nullptr &&
                     c.gpus.size() == set->locals.size() &&
                     m.size() == set->ranks.size();
  if (!valid || !of_ranks_.emplace(m.number(), std::move(c)).second) {
    return absl::InternalError(absl::StrCat(
        "the coordinator's communicator ", m.number(), " of process set ",
        m.process_set(), " is not valid, or was announced before"));
  }
  if (m.first() == 0) output_.Add(MakeCommunicatorId{m.number()});
  return absl::OkStatus();
}

void GpuCommunicators::ConnectRanks(uint32_t number,
                                    const OfRanks& communicator,
                                    const std::string& id) {
  const NodeSet& set = *communicator.set;
  auto connect = session::Make<session::ConnectGpu>();
  connect.number = number;
  connect.size = static_cast<uint32_t>(set.size());
  connect.id_bytes =
      static_cast<uint32_t>(std::min(id.size(), sizeof(connect.id)));
  std::copy_n(id.begin(), connect.id_bytes, connect.id);
  for (size_t i = 0; i < set.locals.size(); ++i) {
    const std::optional<ClientId> client = memories_.ClientOf(set.locals[i]);
    if (!client) continue;  // it has left
    connect.rank = static_cast<uint32_t>(set.PositionOf(set.here[i]));
    connect.gpu = communicator.gpus[i];
    output_.Add(ReplyClient{*client, connect});
  }
}

// --- A coordinator that has replaced another ---------------------------------

void GpuCommunicators::FillState(proto::NodeState* state) const {
  for (const proto::Communicator& c : announced_) {
    *state->add_communicators() = c;
  }
  for (const auto& [number, id] : ids_) *state->add_communicator_ids() = id;
  for (const uint32_t number : ids_received_) state->add_ids_received(number);
}

void GpuCommunicators::OnRecovered() {
  if (ids_.size() == ids_in_state_) return;
  for (const auto& [number, id] : ids_) {
    if (ids_received_.contains(number)) continue;
    proto::ExecutorMessage message;
    *message.mutable_communicator_id() = id;
    output_.Send(std::move(message));
  }
}

}  // namespace maypole::worker
