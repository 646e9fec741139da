#include "coordinator/core/coordinator_core.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/absl_status.h"
#include "common/limits.h"
#include "common/name.h"
#include "common/version.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {
namespace {

// Makes a caller's text one line, as errors need it.
std::string OneLine(absl::string_view text) {
  std::string out = Cut(text, kMaxForeignText);
  std::ranges::replace_if(
      out,
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

CoordinatorCore::CoordinatorCore(const Config& config, std::string incarnation)
    : config_(config), directory_(config, std::move(incarnation)) {}

void CoordinatorCore::Do(const Entry& job, Carry carry,
                         absl::FunctionRef<void(JobShard*, Actions*)> event) {
  jobs_visited_.fetch_add(1, std::memory_order_relaxed);
  std::lock_guard lock(job->mutex);
  Actions actions;
  event(&job->shard, &actions);
  Settle(job, &actions);
  carry(&actions);
}

void CoordinatorCore::Settle(const Entry& job, Actions* actions) {
  for (const Action& action : *actions) {
    if (const Close* close = std::get_if<Close>(&action)) {
      directory_.Close(close->stream);
    }
  }
  for (const std::string& node : job->shard.TakeFreed()) {
    if (!directory_.Release(job->shard.id(), node)) continue;
    actions->emplace_back(
        Log{Level::kInfo,
            absl::StrCat("event=job_forgotten job=", job->shard.id())});
  }
  deadlines_.Move(job, job->shard.Deadline());
}

// --- Streams -----------------------------------------------------------------

void CoordinatorCore::Received(Time now, StreamId stream,
                               const proto::ExecutorMessage& message,
                               Carry carry) {
  const Directory::Stream known = directory_.Find(stream);
  if (known.is_new) return Hello(now, stream, message, carry);
  if (known.job == nullptr) return;  // closed
  Do(known.job, carry, [&](JobShard* job, Actions* actions) {
    job->Received(now, stream, message, actions);
  });
}

void CoordinatorCore::Ended(Time now, StreamId stream, StreamEnd end,
                            Carry carry) {
  const Directory::Stream known = directory_.Find(stream);
  if (known.job != nullptr) {
    Do(known.job, carry, [&](JobShard* job, Actions* actions) {
      job->Ended(now, stream, end, actions);
    });
  }
  directory_.Forget(stream);
}

void CoordinatorCore::Hello(Time now, StreamId stream,
                            const proto::ExecutorMessage& message,
                            Carry carry) {
  absl::Status status;
  std::string who;
  if (!message.has_hello() || message.sequence() != 0) {
    status = InvalidArgument("the first message of a stream must be a hello");
  } else {
    status = CheckHello(message.hello());
  }
  if (status.ok()) {
    who = absl::StrCat(" job=", message.hello().job(),
                       " node=", message.hello().node());
    status = message.hello().session().empty()
                 ? Open(now, stream, message.hello(), carry)
                 : Resume(now, stream, message, carry);
  }
  if (status.ok()) return;
  Actions actions;
  if (absl::IsInvalidArgument(status)) {
    actions.emplace_back(ErrorCounted{ErrorKind::kBadMessage});
  }
  Refuse(stream, status, who, &actions);
  directory_.Close(stream);
  carry(&actions);
}

absl::Status CoordinatorCore::CheckHello(
    const proto::ExecutorHello& hello) const {
  // The version comes first: another version may use other fields.
  const auto version = SessionVersion(hello, config_);
  if (!version.ok()) return version.status();
  struct Field {
    const char* what;
    const std::string& value;
    size_t limit;
  };
  const Field fields[] = {{"the job id", hello.job(), kMaxJobBytes},
                          {"the node's name", hello.node(), kMaxHostBytes},
                          {"the host's name", hello.host(), kMaxHostBytes}};
  for (const Field& f : fields) {
    // The host may be empty.
    if (&f.value == &hello.host() && f.value.empty()) continue;
    const maypole::Status s = CheckName(f.what, f.value, f.limit);
    if (!s.ok()) return ToAbsl(s);
  }
  const Field others[] = {
      {"a token", hello.token(), kMaxTokenBytes},
      {"a session", hello.session(), kMaxSessionBytes},
      {"an incarnation", hello.incarnation(), kMaxSessionBytes}};
  for (const Field& f : others) {
    if (f.value.size() <= f.limit) continue;
    return InvalidArgument("hello with ", f.what, " of ", f.value.size(),
                           " bytes; ", f.limit, " are allowed");
  }
  return absl::OkStatus();
}

absl::Status CoordinatorCore::Open(Time now, StreamId stream,
                                   const proto::ExecutorHello& hello,
                                   Carry carry) {
  const absl::StatusOr<Entry> entry = directory_.Admit(hello);
  if (!entry.ok()) return entry.status();
  absl::Status status;
  Do(*entry, carry, [&](JobShard* job, Actions* actions) {
    status = job->Open(now, stream, ++last_session_, hello, actions);
    if (status.ok()) directory_.Bind(stream, *entry);
  });
  return status;
}

absl::Status CoordinatorCore::Resume(Time now, StreamId stream,
                                     const proto::ExecutorMessage& message,
                                     Carry carry) {
  const proto::ExecutorHello& hello = message.hello();
  // Its session was with an earlier coordinator (core/recovery).
  if (hello.incarnation() != directory_.incarnation()) {
    return Open(now, stream, hello, carry);
  }
  const Entry entry = directory_.Find(hello.job());
  if (entry == nullptr) return SessionIsOver(hello.node(), config_);
  absl::Status status;
  Do(entry, carry, [&](JobShard* job, Actions* actions) {
    status = job->Resume(now, stream, message, actions);
    if (status.ok()) directory_.Bind(stream, entry);
  });
  return status;
}

// --- All jobs ----------------------------------------------------------------

void CoordinatorCore::Passed(Time now, Carry carry) {
  for (const Entry& entry : deadlines_.Due(now)) {
    Do(entry, carry, [now](JobShard* job, Actions* actions) {
      // Another event may have changed the deadline meanwhile.
      const std::optional<Time> deadline = job->Deadline();
      if (deadline && *deadline <= now) job->OnTime(now, actions);
    });
  }
}

void CoordinatorCore::Stop(Carry carry) {
  for (const Entry& entry : directory_.Stop()) {
    Do(entry, carry,
       [](JobShard* job, Actions* actions) { job->Stop(actions); });
  }
}

std::vector<StragglerNode> CoordinatorCore::TakeStragglerTime(Time now) {
  std::vector<StragglerNode> all;
  for (const Entry& entry : directory_.All()) {
    std::lock_guard lock(entry->mutex);
    entry->shard.TakeStragglerTime(now, &all);
  }
  return all;
}

Totals CoordinatorCore::totals() const {
  Totals totals;
  for (const Entry& entry : directory_.All()) {
    std::lock_guard lock(entry->mutex);
    entry->shard.AddTo(&totals);
  }
  return totals;
}

// --- The operator's requests (proto/admin.proto) -----------------------------

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
      // Its first executor has not joined yet.
      if (entry->shard.empty()) continue;
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
      const auto watch = [](Job* job, Time at) {
        if (job->epoch() != nullptr) job->epoch()->Watch(at);
      };
      if (!shard->empty()) shard->Change(now, watch, actions);
    });
  }
}

absl::Status CoordinatorCore::Change(
    Time now, const std::string& job, Carry carry,
    absl::FunctionRef<void(Job*, Time)> change) {
  bool there = false;
  if (const Entry entry = directory_.Find(job)) {
    Do(entry, carry, [&](JobShard* shard, Actions* actions) {
      there = !shard->empty();
      if (there) shard->Change(now, change, actions);
    });
  }
  return there ? absl::OkStatus() : directory_.UnknownJob(job);
}

absl::StatusOr<proto::AbortReply> CoordinatorCore::Abort(
    Time now, const proto::AbortRequest& request, Carry carry) {
  std::string message =
      absl::StrCat("the job was aborted by ", WhoText(request.who()));
  if (!request.reason().empty()) {
    absl::StrAppend(&message, ": ", OneLine(request.reason()));
  }
  proto::AbortReply reply;
  const absl::Status status = Change(
      now, request.job(), carry,
      [&](Job* job, Time at) { reply.set_ranks(job->Abort(at, message)); });
  if (!status.ok()) return status;
  return reply;
}

absl::StatusOr<proto::RecordTimelineReply> CoordinatorCore::RecordTimeline(
    Time now, const proto::RecordTimelineRequest& request, Carry carry) {
  absl::StatusOr<proto::TimelineStatus> timeline;
  const absl::Status status =
      Change(now, request.job(), carry, [&](Job* job, Time) {
        timeline = job->RecordTimeline(request.stop(), WhoText(request.who()));
      });
  if (!status.ok()) return status;
  if (!timeline.ok()) return timeline.status();
  proto::RecordTimelineReply reply;
  *reply.mutable_timeline() = *std::move(timeline);
  return reply;
}

absl::StatusOr<proto::DrainReply> CoordinatorCore::Drain(
    Time, const proto::DrainRequest& request, Carry carry) {
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
  if (drained->changed) {  // false for a repeated request, as by --wait
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
