#include "coordinator/core/membership/job_nodes.h"

#include <utility>

#include "common/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {

void JobNodes::Remove(SessionId session) {
  nodes_.erase(session);
  rounds_.erase(session);
}

std::optional<SessionId> JobNodes::SessionOf(const std::string& node) const {
  for (const auto& [session, n] : nodes_) {
    if (n.node == node) return session;
  }
  return std::nullopt;
}

uint64_t JobNodes::Round(SessionId session) const {
  const auto it = rounds_.find(session);
  return it == rounds_.end() ? 0 : it->second;
}

void JobNodes::SendRefusal(SessionId session,
                           const std::vector<uint64_t>& clients,
                           absl::StatusCode code, const std::string& message) {
  ++rounds_[session];
  proto::CoordinatorMessage m;
  m.mutable_epoch_end()->set_code(static_cast<int>(code));
  m.mutable_epoch_end()->set_message(Cut(message, kMaxErrorBytes));
  m.mutable_epoch_end()->mutable_clients()->Assign(clients.begin(),
                                                   clients.end());
  output_.messages.emplace_back(session, std::move(m));
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
  output_.messages.emplace_back(session, std::move(m));
}

void JobNodes::SendRecovered(SessionId session) {
  proto::CoordinatorMessage m;
  m.mutable_recovered();
  output_.messages.emplace_back(session, std::move(m));
}

}  // namespace maypole::coordinator
