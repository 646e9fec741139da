// The operator's requests to the core; see proto/admin.proto.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "common/name.h"
#include "common/version.h"
#include "coordinator/core/coordinator_core.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {
namespace {

// Makes a caller's text fit for errors, which are one line.
std::string OneLine(absl::string_view text) {
  std::string out = Cut(text, kMaxForeignText);
  std::replace_if(
      out.begin(), out.end(),
      [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); },
      ' ');
  return out;
}

std::string WhoText(absl::string_view who) {
  return who.empty() ? "its operator" : OneLine(who);
}

// Shortens a job's status; the list of jobs itself is kept.
void LeaveOutDetails(proto::JobStatus* job) {
  job->clear_pending();
  for (proto::NodeStatus& node : *job->mutable_nodes()) {
    node.clear_rank_status();
  }
}

}  // namespace

absl::StatusOr<proto::StatusReply> CoordinatorCore::Status(
    Time now, const proto::StatusRequest& request) const {
  proto::StatusReply reply;
  reply.set_version(kVersion);
  reply.set_protocol_version(kProtocolVersion);
  reply.set_incarnation(directory_.incarnation());
  for (std::string& node : directory_.DrainedNodes()) {
    reply.add_drained_nodes(std::move(node));
  }
  size_t bytes = 0;
  for (const Entry& entry : directory_.All()) {
    if (!request.job().empty() && entry->shard.id() != request.job()) continue;
    proto::JobStatus status;
    {
      std::lock_guard lock(entry->mutex);
      if (entry->shard.empty()) continue;  // its first executor is not yet in
      entry->shard.FillStatus(now, &status);
    }
    if (bytes + status.ByteSizeLong() > kMaxStatusBytes) {
      LeaveOutDetails(&status);
      reply.set_cut(true);
    } else {
      bytes += status.ByteSizeLong();
    }
    *reply.add_jobs() = std::move(status);
  }
  if (!request.job().empty() && reply.jobs_size() == 0) {
    return directory_.UnknownJob(request.job());
  }
  return reply;
}

void CoordinatorCore::Watch(Time now, const std::string& job, Carry carry) {
  for (const Entry& entry : directory_.All()) {
    if (!job.empty() && entry->shard.id() != job) continue;
    Do(entry, carry, [now](JobShard* shard, Actions* actions) {
      if (shard->empty()) return;
      shard->Change(
          now,
          [](Job* job, Time at) {
            if (job->epoch() != nullptr) job->epoch()->Watch(at);
          },
          actions);
    });
  }
}

absl::StatusOr<proto::AbortReply> CoordinatorCore::Abort(
    Time now, const proto::AbortRequest& request, Carry carry) {
  const Entry entry = directory_.Find(request.job());
  if (entry == nullptr) return directory_.UnknownJob(request.job());
  std::string message =
      absl::StrCat("the job was aborted by ", WhoText(request.who()));
  if (!request.reason().empty()) {
    absl::StrAppend(&message, ": ", OneLine(request.reason()));
  }
  proto::AbortReply reply;
  bool there = false;
  Do(entry, carry, [&](JobShard* shard, Actions* actions) {
    there = !shard->empty();
    if (!there) return;
    shard->Change(
        now,
        [&](Job* job, Time at) { reply.set_ranks(job->Abort(at, message)); },
        actions);
  });
  if (!there) return directory_.UnknownJob(request.job());
  return reply;
}

absl::StatusOr<proto::RecordTimelineReply> CoordinatorCore::RecordTimeline(
    Time now, const proto::RecordTimelineRequest& request, Carry carry) {
  const Entry entry = directory_.Find(request.job());
  if (entry == nullptr) return directory_.UnknownJob(request.job());
  absl::StatusOr<proto::TimelineStatus> timeline =
      directory_.UnknownJob(request.job());
  Do(entry, carry, [&](JobShard* shard, Actions* actions) {
    if (shard->empty()) return;
    shard->Change(
        now,
        [&](Job* job, Time) {
          timeline =
              job->RecordTimeline(request.stop(), WhoText(request.who()));
        },
        actions);
  });
  if (!timeline.ok()) return timeline.status();
  proto::RecordTimelineReply reply;
  *reply.mutable_timeline() = *std::move(timeline);
  return reply;
}

absl::StatusOr<proto::DrainReply> CoordinatorCore::Drain(
    const proto::DrainRequest& request, Carry carry) {
  const std::string& node = request.node();
  if (const maypole::Status s =
          CheckName("the node's name", node, kMaxHostBytes);
      !s.ok()) {
    return InvalidArgument(
        s.message(),
        "; a node's name is the --node of its maypole-worker "
        "(default: the host's name)");
  }
  const auto drained = directory_.Drain(node, request.undo());
  if (!drained.ok()) return drained.status();
  if (drained->changed) {  // false if it is repeated, as by --wait
    Actions actions;
    actions.emplace_back(Log{
        Level::kInfo,
        absl::StrCat("event=node_", request.undo() ? "undrained" : "drained",
                     " node=", node, " jobs=", drained->jobs.size(),
                     " who=", LogValue(WhoText(request.who())))});
    carry(&actions);
  }
  proto::DrainReply reply;
  for (const std::string& job : drained->jobs) reply.add_jobs(job);
  return reply;
}

}  // namespace maypole::coordinator
