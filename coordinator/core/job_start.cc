// The part of Job that starts epochs: from the first rank that waits
// (gathering.h) to the epoch, or to a failed start.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "coordinator/core/job.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {

NodeMember Job::MemberOf(SessionId session) const {
  const Node& node = nodes_.at(session);
  NodeMember member;
  member.session = session;
  member.node = node.node;
  member.host = node.host;
  member.address = node.address;
  member.versions = node.versions;
  member.version = std::min(node.versions.newest, config_.versions.newest);
  return member;
}

bool Job::RefusesFixed(SessionId session) {
  if (aborted_) {
    RefuseAborted(session);
  } else if (!TakesFixed()) {
    RefuseMixed(session, false);
  } else {
    return false;
  }
  return true;
}

absl::Status Job::OnReady(Time now, SessionId session,
                          const proto::RanksReady& ready) {
  if (ready.elastic()) return OnElasticReady(now, session, ready);
  absl::Status sound = CheckRanksReady(ready);
  if (!sound.ok()) return sound;
  if (epoch_ != nullptr) {
    const std::optional<size_t> node = epoch_->nodes().IndexOf(session);
    if (node && !epoch_->departures().LiveRanks(*node).empty()) {
      return InvalidArgument("ranks that are ready for a new epoch while ",
                             RanksText(epoch_->departures().LiveRanks(*node)),
                             " of the node have not left epoch ",
                             epoch_number_);
    }
  }
  if (RefusesFixed(session)) return absl::OkStatus();
  const Node& node = nodes_.at(session);
  NodeMember member = MemberOf(session);
  member.ranks = {ready.ranks().begin(), ready.ranks().end()};
  member.pids = {ready.pids().begin(), ready.pids().end()};
  member.chunk_bytes = ready.chunk_bytes();
  member.local_size = static_cast<uint32_t>(ready.ranks_size());
  member.fusion_thresholds = {ready.fusion_thresholds().begin(),
                              ready.fusion_thresholds().end()};
  member.stall_check_ms = ready.stall_check_ms();
  member.stall_shutdown_ms = ready.stall_shutdown_ms();
  member.start_timeout_ms = ready.start_timeout_ms();
  member.checksums = ready.checksums();
  out_->Info(LogPrefix("ranks_ready"), " node=", node.node, " host=", node.host,
             " ranks=", LogValue(RanksText(member.ranks)),
             " size=", ready.size());
  if (failed_start_ && failed_start_->told.insert(session).second) {
    TellFailedStart(session);
    return absl::OkStatus();
  }
  failed_start_.reset();
  // Ready again: a start that failed on the node crossed with its failure here.
  gathering_.Remove(session);
  if (!start_since_) start_since_ = now;
  absl::Status status = gathering_.Add(std::move(member), ready.size());
  if (!status.ok()) {
    FailStart(std::string(status.message()), 0);
  } else {
    StartIfComplete();
  }
  return absl::OkStatus();
}

absl::Status Job::OnWaiting(Time now, SessionId session,
                            const proto::RanksWaiting& waiting) {
  absl::Status sound = CheckRanksWaiting(waiting);
  if (!sound.ok()) return sound;
  const Node& node = nodes_.at(session);
  if (epoch_ != nullptr) {
    const std::optional<size_t> i = epoch_->nodes().IndexOf(session);
    if (i && !epoch_->departures().LiveRanks(*i).empty()) {
      // The node's start timed out while its last ranks became ready: the
      // messages have crossed.
      EndEpoch(
          absl::StrCat("the job cannot start: ",
                       ExecutorText(node, epoch_->nodes().members()[*i].ranks),
                       " has given up waiting for it"));
    }
  }
  gathering_.Remove(session);
  if (waiting.ranks().empty()) {
    if (gathering_.empty()) start_since_.reset();
    return absl::OkStatus();
  }
  if (RefusesFixed(session)) return absl::OkStatus();
  NodeMember member = MemberOf(session);
  member.ranks = {waiting.ranks().begin(), waiting.ranks().end()};
  member.local_size = waiting.local_size();
  member.start_timeout_ms = waiting.start_timeout_ms();
  gathering_.SetWaiting(std::move(member), waiting.size());
  // Ranks that are late for a failed start are told of it when all ranks of the
  // node are there.
  if (failed_start_ && !failed_start_->told.contains(session)) {
    return absl::OkStatus();
  }
  failed_start_.reset();
  if (!start_since_) start_since_ = now;
  return absl::OkStatus();
}

void Job::StartIfComplete() {
  if (epoch_ != nullptr || recovery_ || !gathering_.Complete()) return;
  const uint32_t size = gathering_.size();
  start_since_.reset();
  epoch_number_ = std::max(epoch_number_, said_epoch_) + 1;
  const Config config = ConfigOfStart();
  const EpochSize sizes = {size, elastic_.min_size(), elastic_.max_size()};
  epoch_ = std::make_unique<CoordinatorEpoch>(
      epoch_number_, sizes, gathering_.Take(), config, id_, out_);
  out_->Info(LogPrefix("epoch_start"), " size=", size,
             " nodes=", epoch_->nodes().members().size());
  for (const NodeMember& m : epoch_->nodes().members())
    ++nodes_.at(m.session).round;
  epoch_->Start(decisions_);
}

Config Job::ConfigOfStart() const {
  Config config = config_;
  ReadStallTimes(&config);
  for (const NodeMember& m : gathering_.members()) {
    config.checksums =
        std::max(config.checksums, static_cast<ChecksumMode>(m.checksums));
  }
  const std::vector<RankThreshold> said = gathering_.FusionThresholds();
  if (said.empty()) return config;
  config.fusion_threshold = static_cast<uint64_t>(said.front().bytes);
  for (const RankThreshold& other : said) {
    if (other.bytes == said.front().bytes) continue;
    out_->Warn(LogPrefix("fusion_thresholds_differ"),
               " rank=", said.front().rank, " bytes=", said.front().bytes,
               " other_rank=", other.rank, " other_bytes=", other.bytes,
               " used=", said.front().bytes,
               " reason=\"the smallest rank's is used; give all ranks the same "
               "MAYPOLE_FUSION_THRESHOLD\"");
    break;
  }
  return config;
}

void Job::ReadStallTimes(Config* config) const {
  auto smallest = [this](int64_t NodeMember::*field) {
    const NodeMember* first = nullptr;
    for (const NodeMember& m : gathering_.members()) {
      if (m.*field < 0) continue;
      if (first == nullptr ||
          *std::min_element(m.ranks.begin(), m.ranks.end()) <
              *std::min_element(first->ranks.begin(), first->ranks.end())) {
        first = &m;
      }
    }
    return first == nullptr ? -1 : first->*field;
  };
  const int64_t check = smallest(&NodeMember::stall_check_ms);
  const int64_t shutdown = smallest(&NodeMember::stall_shutdown_ms);
  if (check >= 0) config->stall_check = std::chrono::milliseconds(check);
  if (shutdown >= 0)
    config->stall_shutdown = std::chrono::milliseconds(shutdown);
  const bool checks = config->stall_check > Time::zero();
  if (config->stall_shutdown == Time::zero() ||
      (checks && config->stall_shutdown > config->stall_check)) {
    return;
  }
  out_->Warn(
      LogPrefix("stall_shutdown_too_short"),
      " check=", LogValue(SecondsText(config->stall_check)),
      " shutdown=", LogValue(SecondsText(config->stall_shutdown)),
      !checks ? " reason=\"no rank counts as late (check 0), so no job ends\""
              : " reason=\"a rank counts as late only after the check time, so "
                "the job ends later\"");
}

void Job::FailStart(const std::string& message, SessionId reporter,
                    absl::StatusCode code) {
  out_->Warn(LogPrefix("start_failed"), " reason=", LogValue(message));
  failed_start_ = FailedStart();
  failed_start_->code = code;
  failed_start_->message = Cut(message, kMaxErrorBytes);
  for (const NodeMember& member : gathering_.members()) {
    failed_start_->told.insert(member.session);
    if (member.session != reporter) TellFailedStart(member.session);
  }
  // If no node was told, no node would start again and reset failed_start_.
  if (failed_start_->told.empty()) failed_start_.reset();
  gathering_.Clear();
  start_since_.reset();
}

void Job::TellFailedStart(SessionId session) {
  ++nodes_.at(session).round;
  proto::CoordinatorMessage m;
  m.mutable_epoch_end()->set_code(static_cast<int>(failed_start_->code));
  m.mutable_epoch_end()->set_message(failed_start_->message);
  out_->messages.emplace_back(session, std::move(m));
}

std::optional<Time> Job::StartDeadline() const {
  if (!start_since_) return std::nullopt;
  return *start_since_ + gathering_.StartTimeout(config_.start_timeout);
}

void Job::StartTimedOut() {
  out_->Count(ErrorKind::kStartTimeout);
  std::string message = absl::StrCat(
      "the job did not start within ",
      SecondsText(gathering_.StartTimeout(config_.start_timeout)), ": ");
  if (epoch_ != nullptr) {
    absl::StrAppend(&message, "epoch ", epoch_number_,
                    " is still running; end it before you start another");
  } else {
    absl::StrAppend(&message, gathering_.MissingText());
  }
  gathering_.TakeWaitingIn();
  FailStart(message, 0, absl::StatusCode::kDeadlineExceeded);
}

}  // namespace maypole::coordinator
