// What an operator asks the core for: see proto/admin.proto.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/limits.h"
#include "coordinator/core/core.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/text.h"
#include "coordinator/core/version.h"

namespace maypole::coordinator {
namespace {

// What a caller says goes into errors, which are one line.
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

// Which jobs there are matters most; ranks and operations go first.
void LeaveOutDetails(proto::JobStatus* job) {
  job->clear_pending();
  for (proto::NodeStatus& node : *job->mutable_nodes()) {
    node.clear_rank_status();
  }
}

}  // namespace

absl::StatusOr<proto::StatusReply> Core::Status(
    Time now, const proto::StatusRequest& request) const {
  proto::StatusReply reply;
  reply.set_version(kVersion);
  reply.set_protocol_version(kProtocolVersion);
  reply.set_incarnation(incarnation_);
  for (const auto& [node, kept] : drained_) reply.add_drained_nodes(node);
  if (!request.job().empty() && !jobs_.contains(request.job())) {
    return UnknownJob(request.job());
  }
  size_t bytes = 0;
  for (const auto& [id, job] : jobs_) {
    if (!request.job().empty() && id != request.job()) continue;
    proto::JobStatus* status = reply.add_jobs();
    job->FillStatus(now, status);
    for (proto::NodeStatus& node : *status->mutable_nodes()) {
      const std::optional<SessionId> session = job->SessionOf(node.node());
      node.set_connected(session && sessions_.at(*session).stream != 0);
    }
    if (bytes + status->ByteSizeLong() > kMaxStatusBytes) {
      LeaveOutDetails(status);
      reply.set_cut(true);
    } else {
      bytes += status->ByteSizeLong();
    }
  }
  return reply;
}

absl::StatusOr<proto::AbortReply> Core::Abort(
    Time now, const proto::AbortRequest& request, Actions* actions) {
  now_ = now;
  Job* job = FindJob(request.job());
  if (job == nullptr) return UnknownJob(request.job());
  std::string message =
      absl::StrCat("the job was aborted by ", WhoText(request.who()));
  if (!request.reason().empty()) {
    absl::StrAppend(&message, ": ", OneLine(request.reason()));
  }
  proto::AbortReply reply;
  JobOutput output;
  reply.set_ranks(job->Abort(now, message, &output));
  Deliver(std::move(output), actions);
  return reply;
}

absl::StatusOr<proto::DrainReply> Core::Drain(
    const proto::DrainRequest& request, Actions* actions) {
  const std::string& node = request.node();
  if (node.empty() || node.size() > kMaxHostBytes || !IsPlainName(node)) {
    return absl::InvalidArgumentError(
        absl::StrCat("bad node name ", LogValue(Cut(node, kMaxHostBytes)),
                     ": a node has the name that its maypole-worker was given "
                     "by --node (default: the host's)"));
  }
  const std::vector<std::string> jobs = JobsOn(node);
  const bool was = drained_.contains(node);
  if (!request.undo() && !was && drained_.size() >= kMaxDrained) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kMaxDrained,
                     " nodes are drained already, which is the limit; undo "
                     "those that are no more"));
  }
  if (request.undo()) {
    drained_.erase(node);
  } else if (!was) {
    drained_[node] = {jobs.begin(), jobs.end()};
  }
  if (was == request.undo()) {  // else it is said again, as by --wait
    actions->emplace_back(Log{
        Level::kInfo,
        absl::StrCat("event=node_", request.undo() ? "undrained" : "drained",
                     " node=", node, " jobs=", jobs.size(),
                     " who=", LogValue(WhoText(request.who())))});
  }
  proto::DrainReply reply;
  for (const std::string& job : jobs) reply.add_jobs(job);
  return reply;
}

absl::Status Core::CheckDrained(const proto::ExecutorHello& hello) const {
  const auto it = drained_.find(hello.node());
  if (it == drained_.end() || it->second.contains(hello.job())) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "node '", hello.node(),
      "' has been drained by an operator and takes no new jobs; start job '",
      hello.job(), "' on other nodes, or ask for: maypolectl drain ",
      hello.node(), " --undo"));
}

absl::Status Core::UnknownJob(const std::string& id) const {
  constexpr size_t kShown = 8;
  std::vector<std::string> names;
  for (const auto& [name, job] : jobs_) {
    if (names.size() < kShown) names.push_back(name);
  }
  std::string there = absl::StrJoin(names, ", ");
  if (jobs_.size() > kShown) {
    absl::StrAppend(&there, " and ", jobs_.size() - kShown, " more");
  }
  return absl::NotFoundError(absl::StrCat(
      "there is no job ", LogValue(Cut(id, kMaxJobBytes)),
      jobs_.empty() ? "; there are no jobs now" : "; there are: ", there));
}

std::vector<std::string> Core::JobsOn(const std::string& node) const {
  std::vector<std::string> out;
  for (const auto& [id, job] : jobs_) {
    if (job->SessionOf(node)) out.push_back(id);
  }
  return out;
}

}  // namespace maypole::coordinator
