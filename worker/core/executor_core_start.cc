// ExecutorCore: the start of an epoch, from the first waiting rank to the
// board.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/core/executor_core.h"

namespace maypole::worker {

void ExecutorCore::BeginIfComplete() {
  if (phase_ != Phase::kIdle || gathering_.elastic()) return;
  if (!gathering_.complete()) {
    if (!gathering_.empty()) SendWaiting(gathering_);
    return;
  }
  members_ = std::exchange(gathering_, Membership());
  phase_ = Phase::kReady;
  SayReady();
}

// A start that is complete here goes on; the others' clients close, and come to
// the agent's successor.
void ExecutorCore::OnSupervisorGone() {
  const bool starts =
      gathering_.elastic() ? phase_ != Phase::kIdle : gathering_.complete();
  if (gathering_.empty() || starts) return;
  for (const auto& [local, m] : gathering_.members()) {
    actions_.push_back(CloseClient{m.client});
  }
  const bool elastic = gathering_.elastic();
  gathering_ = Membership();
  elastic ? SayWaiting() : WithdrawWaiting();
}

// Ranks that wait for the end of an epoch were not reported, and an empty list
// would end that epoch.
void ExecutorCore::WithdrawWaiting() {
  if (phase_ == Phase::kIdle) SendWaiting(Membership());
}

void ExecutorCore::SayReady() {
  proto::ExecutorMessage message;
  proto::RanksReady* ready = message.mutable_ranks_ready();
  ready->set_size(static_cast<uint32_t>(members_.size()));
  for (const auto& [local, m] : members_.members()) {
    ready->add_ranks(static_cast<uint32_t>(m.rank));
    ready->add_pids(m.pid);
  }
  AddFacts(members_, ready);
  Send(std::move(message));
}

void ExecutorCore::AddFacts(const Membership& membership,
                            proto::RanksReady* ready) {
  ready->set_chunk_bytes(options_.chunk_bytes);
  ready->set_stall_check_ms(-1);
  ready->set_stall_shutdown_ms(-1);
  ready->set_start_timeout_ms(membership.StartTimeoutMs(0));
  bool said = false;
  for (const auto& [local, m] : membership.members()) {
    if (ready->stall_check_ms() < 0)
      ready->set_stall_check_ms(m.stall_check_ms);
    if (ready->stall_shutdown_ms() < 0) {
      ready->set_stall_shutdown_ms(m.stall_shutdown_ms);
    }
    ready->set_checksums(std::max(ready->checksums(), m.checksums));
    ready->add_fusion_thresholds(m.fusion_threshold);
    said = said || m.fusion_threshold >= 0;
  }
  if (!said) ready->clear_fusion_thresholds();
}

void ExecutorCore::SendWaiting(const Membership& waiting) {
  proto::ExecutorMessage message;
  proto::RanksWaiting* w = message.mutable_ranks_waiting();
  w->set_size(static_cast<uint32_t>(waiting.size()));
  w->set_local_size(static_cast<uint32_t>(waiting.local_size()));
  w->set_start_timeout_ms(waiting.StartTimeoutMs(0));
  for (const auto& [local, m] : waiting.members()) {
    w->add_ranks(static_cast<uint32_t>(m.rank));
  }
  Send(std::move(message));
}

void ExecutorCore::OnEpochStart(const proto::EpochStart& start) {
  const bool elastic = !start.clients().empty();
  if (elastic && !TakeIn(start)) return;
  // The last waiting rank may have left while EpochStart was on its way; the
  // coordinator ignores what was sent then, because it was of an earlier round.
  if (elastic && gathering_.empty()) SayWaiting();
  if (phase_ != Phase::kReady) return;          // it crossed our RankGone
  if (epoch_) actions_.push_back(DropEpoch{});  // it has drained by now
  epoch_.reset();
  std::vector<int> ranks;
  for (const auto& [local, m] : members_.members()) ranks.push_back(m.rank);
  absl::StatusOr<EpochInfo> info = ReadEpochStart(start, ranks);
  absl::Status status = info.status();
  if (status.ok()) status = CheckVersions(*info, options_.versions);
  if (!status.ok()) {
    SendFailed(start.epoch(), status);
    return FailStart(CodeOf(status.raw_code()), std::string(status.message()));
  }
  early_.clear();
  NoteEpoch(start);
  epoch_.emplace(*info, options_.slots, options_.records,
                 options_.frozen_timeout_ms, &actions_);
  epoch_->watch().CountHandled();
  nccl_version_ = options_.nccl_version;
  if (!info->several_nodes()) return MakeBoard();
  phase_ = Phase::kPreparing;
  PrepareBackend prepare{info->epoch, info->node_index};
  for (uint32_t i = 0; i < info->nodes.size(); ++i) {
    prepare.node_names.push_back(info->NodeText(i));
    prepare.node_addresses.push_back(info->nodes[i].address());
  }
  actions_.push_back(std::move(prepare));
}

void ExecutorCore::OnBackendPrepared(
    const absl::StatusOr<std::vector<std::string>>& addresses) {
  if (phase_ != Phase::kPreparing) return;
  if (!addresses.ok()) {
    return StartFailedHere(addresses.status());
  }
  proto::ExecutorMessage message;
  message.set_epoch(epoch_number());
  for (const std::string& a : *addresses) {
    message.mutable_endpoint()->add_addresses(a);
  }
  message.mutable_endpoint()->set_nccl_version(
      options_.nccl_between_nodes ? options_.nccl_version : 0);
  endpoint_ = message;
  Send(std::move(message));
}

void ExecutorCore::OnEndpoints(uint64_t epoch,
                               const proto::Endpoints& endpoints) {
  if (!epoch_ || epoch != epoch_->info().epoch) return;
  epoch_->watch().CountHandled();
  // A coordinator that has replaced another tells all nodes again.
  if (phase_ != Phase::kPreparing) return;
  connected_ = true;
  phase_ = Phase::kConnecting;
  nccl_version_ = endpoints.nccl_version();
  actions_.push_back(ConnectBackend{
      {endpoints.addresses().begin(), endpoints.addresses().end()}});
}

void ExecutorCore::OnBackendConnected(const absl::Status& status) {
  if (phase_ != Phase::kConnecting) return;
  if (status.ok()) return MakeBoard();
  StartFailedHere(status);
}

void ExecutorCore::MakeBoard() {
  phase_ = Phase::kCreating;
  const EpochInfo& info = epoch_->info();
  CreateBoard create;
  create.checksums = info.checksums;
  create.version = members_.BoardVersion(options_.versions.newest);
  create.config.epoch = info.epoch;
  create.config.size = static_cast<uint32_t>(info.size);
  create.config.local_size = static_cast<uint32_t>(members_.local_size());
  create.config.nodes = static_cast<uint32_t>(info.nodes.size());
  create.config.node_index = info.node_index;
  create.config.slots =
      (options_.slots + kSlotStep - 1) / kSlotStep * kSlotStep;
  create.config.runs = options_.records;
  create.config.chunk_bytes = info.chunk_bytes;
  create.config.ring_depth = options_.ring_depth;
  create.config.arena_bytes = options_.arena_bytes;
  create.config.gpu_communicators = nccl_version_ != 0 ? 1 : 0;
  if (nccl_version_ != 0) {
    epoch_->EnableNccl(nccl_version_, options_.nccl_host);
  }
  for (const auto& [local, m] : members_.members()) {
    create.config.global_rank[local] = m.rank;
    create.clients.push_back(m.client);
    create.pids.push_back(m.visible_pid);
  }
  actions_.push_back(std::move(create));
}

bool ExecutorCore::OnBoardCreated(const absl::Status& status) {
  if (phase_ != Phase::kCreating) return false;
  if (status.ok()) {
    phase_ = Phase::kRunning;
    failed_starts_ = 0;
    BeginRelays();
    for (const auto& m : std::exchange(early_, {})) OnCoordinator(m);
    return true;
  }
  const std::string text =
      absl::StrCat("node ", options_.node, " (host ", options_.host,
                   ") cannot make the job's shared memory: ", status.message());
  SendFailed(epoch_number(), absl::Status(status.code(), text));
  FailStart(CodeOf(status.raw_code()), text);
  return false;
}

void ExecutorCore::FailStart(Code code, const std::string& text) {
  if (members_.elastic() && epoch_number() > 0) {
    for (const auto& [local, m] : members_.members()) {
      SendRankGone(m, false, "it was refused");
    }
  }
  if (phase_ != Phase::kReady) NoteEnd(code, text);
  Refuse(&members_, code, text);
  // Before EpochStart, epoch_ is the previous epoch. It may still be draining:
  // other nodes may be receiving what our backend has sent.
  const bool draining = phase_ == Phase::kReady;
  phase_ = Phase::kIdle;
  if (!draining) ForgetEpoch();
  BeginIfComplete();
}

void ExecutorCore::ForgetEpoch() {
  if (epoch_) actions_.push_back(DropEpoch{});
  epoch_.reset();
}

}  // namespace maypole::worker
