#include "coordinator/core/membership/job_nodes.h"

#include <algorithm>
#include <utility>

#include "common/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {

JobNodes::JobNodes(std::string job, VersionRange versions, JobOutput* output)
    : out(*output), job_(std::move(job)), versions_(versions) {}

void JobNodes::Add(SessionId session, Node node) {
  nodes_.emplace(session, std::move(node));
}

std::optional<SessionId> JobNodes::SessionOf(const std::string& node) const {
  for (const auto& [session, n] : nodes_) {
    if (n.node == node) return session;
  }
  return std::nullopt;
}

NodeMember JobNodes::MemberOf(SessionId session) const {
  const Node& node = nodes_.at(session);
  NodeMember member;
  member.session = session;
  member.node = node.node;
  member.host = node.host;
  member.address = node.address;
  member.versions = node.versions;
  member.version = std::min(node.versions.newest, versions_.newest);
  return member;
}

void JobNodes::SendRefusal(SessionId session,
                           const std::vector<uint64_t>& clients,
                           absl::StatusCode code, const std::string& message) {
  ++nodes_.at(session).round;
  proto::CoordinatorMessage m;
  m.mutable_epoch_end()->set_code(static_cast<int>(code));
  m.mutable_epoch_end()->set_message(Cut(message, kMaxErrorBytes));
  m.mutable_epoch_end()->mutable_clients()->Assign(clients.begin(),
                                                   clients.end());
  out.messages.emplace_back(session, std::move(m));
}

void JobNodes::Refuse(SessionId session, const std::vector<uint64_t>& clients,
                      absl::StatusCode code, const std::string& message) {
  Warn("ranks_refused", " node=", nodes_.at(session).node,
       " reason=", LogValue(message));
  SendRefusal(session, clients, code, message);
}

void JobNodes::SendEpochOver(SessionId session, uint64_t epoch,
                             const std::string& why) {
  proto::CoordinatorMessage m;
  m.set_epoch(epoch);
  m.mutable_epoch_end()->set_code(static_cast<int>(absl::StatusCode::kAborted));
  m.mutable_epoch_end()->set_message(Cut(why, kMaxErrorBytes));
  out.messages.emplace_back(session, std::move(m));
}

void JobNodes::SendRecovered(SessionId session) {
  proto::CoordinatorMessage m;
  m.mutable_recovered();
  out.messages.emplace_back(session, std::move(m));
}

std::string JobNodes::LogPrefix(absl::string_view event) const {
  return absl::StrCat("event=", event, " job=", job_, " epoch=", epoch_);
}

std::string ExecutorText(const JobNodes::Node& node,
                         const std::vector<uint32_t>& ranks) {
  return absl::StrCat("the executor of ", NodeText(node.node, node.host),
                      " with ", RanksText(ranks));
}

}  // namespace maypole::coordinator
