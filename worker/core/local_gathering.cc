#include "worker/core/local_gathering.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/absl_status.h"
#include "worker/core/epoch_info.h"
#include "worker/core/limits.h"

namespace maypole::worker {

absl::Status LocalGathering::Add(int64_t now_ms, ClientId client,
                                 const session::Hello& hello, int visible_pid) {
  absl::Status status = ranks_.Add(client, hello, visible_pid);
  if (status.ok() && ranks_.members().size() == 1) since_ms_ = now_ms;
  return status;
}

void LocalGathering::Refuse(const absl::Status& why) {
  for (const auto& [local, m] : ranks_.members()) {
    actions_.push_back(Refusal(m.client, why));
  }
  ranks_ = Membership();
}

void LocalGathering::Refuse(const proto::EpochEnd& end) {
  std::vector<ClientId> refused(end.clients().begin(), end.clients().end());
  if (refused.empty()) {
    for (const auto& [arrival, m] : ranks_.members()) {
      refused.push_back(m.client);
    }
  }
  for (const ClientId client : refused) {
    if (ranks_.Find(client) == nullptr) continue;
    ranks_.Remove(client);
    actions_.push_back(Refusal(client, ReasonOf(end)));
  }
  // If no rank is left, this still reports the new round.
  ReportElastic();
}

void LocalGathering::CloseAll() {
  for (const auto& [local, m] : ranks_.members()) {
    actions_.push_back(CloseClient{m.client});
  }
  ranks_ = Membership();
}

absl::Status LocalGathering::CheckTime(int64_t now_ms) const {
  const int64_t timeout_ms = ranks_.StartTimeoutMs(options_.start_timeout_ms);
  if (ranks_.empty() || ranks_.complete() ||
      now_ms - since_ms_ < timeout_ms + kStartGraceMs) {
    return absl::OkStatus();
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "job '", options_.job, "' cannot start: ", ranks_.MissingText(),
      " on node ", options_.node, " (host ", options_.host, ") within ",
      static_cast<double>(timeout_ms) / 1000, " s"));
}

// --- Reports to the coordinator ----------------------------------------------

void LocalGathering::ReportElastic() {
  reported_elastic_ = true;
  proto::ExecutorMessage message;
  proto::RanksReady* ready = message.mutable_ranks_ready();
  ready->set_elastic(true);
  ready->set_min_size(static_cast<uint32_t>(ranks_.min_size()));
  ready->set_max_size(static_cast<uint32_t>(ranks_.max_size()));
  ready->set_round(round_);
  for (const auto& [arrival, m] : ranks_.members()) {
    proto::ElasticMember* member = ready->add_members();
    member->set_client(m.client);
    member->set_pid(m.pid);
    if (m.last_epoch == 0) continue;
    member->set_epoch(m.last_epoch);
    member->set_rank(static_cast<uint32_t>(m.last_rank));
  }
  AddSettings(ranks_, ready);
  link_.Send(std::move(message));
}

void LocalGathering::ReportWaiting(const Membership& waiting) {
  proto::ExecutorMessage message;
  proto::RanksWaiting* w = message.mutable_ranks_waiting();
  w->set_size(static_cast<uint32_t>(waiting.size()));
  w->set_local_size(static_cast<uint32_t>(waiting.local_size()));
  w->set_start_timeout_ms(waiting.StartTimeoutMs(0));
  for (const auto& [local, m] : waiting.members()) {
    w->add_ranks(static_cast<uint32_t>(m.rank));
  }
  link_.Send(std::move(message));
}

void LocalGathering::ReportReady(const Membership& ranks) {
  proto::ExecutorMessage message;
  proto::RanksReady* ready = message.mutable_ranks_ready();
  ready->set_size(static_cast<uint32_t>(ranks.size()));
  for (const auto& [local, m] : ranks.members()) {
    ready->add_ranks(static_cast<uint32_t>(m.rank));
    ready->add_pids(m.pid);
  }
  AddSettings(ranks, ready);
  link_.Send(std::move(message));
}

void LocalGathering::AddSettings(const Membership& ranks,
                                 proto::RanksReady* ready) const {
  ready->set_chunk_bytes(options_.chunk_bytes);
  ready->set_stall_check_ms(-1);
  ready->set_stall_shutdown_ms(-1);
  ready->set_start_timeout_ms(ranks.StartTimeoutMs(0));
  bool said = false;
  for (const auto& [local, m] : ranks.members()) {
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

}  // namespace maypole::worker
