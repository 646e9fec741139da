// ExecutorLogic: the clients' connections and messages.
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "worker/core/limits.h"
#include "worker/executor/executor_logic.h"

namespace maypole::worker {
namespace {

// Before a new client is admitted, all messages of the others are read; this is
// more than a socket's buffer holds.
constexpr int kMessagesBeforeHandOver = 16384;

// Parses the message and passes it to `take`.
template <typename Message, typename Take>
Status Parsed(const std::vector<char>& data, Take take) {
  Message message;
  const Status s = session::Parse(data.data(), data.size(), &message);
  if (s.ok()) take(message);
  return s;
}

session::Refused MakeRefused(Code code, const std::string& text) {
  auto refused = session::Make<session::Refused>();
  refused.code = static_cast<uint32_t>(code);
  session::SetText(refused.text, text);
  return refused;
}

}  // namespace

void ExecutorLogic::Admit(ClientId id, const ArrivingClient& client,
                          std::unique_ptr<ClientLink> link) {
  // If a rank reconnects, its Goodbye may still be queued behind hundreds of
  // requests in its old socket.
  ReadAllClients();
  if (clients_.size() >= kMaxClients) {
    const std::string reason = absl::StrCat(
        "rank ", client.hello.rank, " of job '", options_.job,
        "' is refused: the job's executor on node ", options_.node, " (host ",
        options_.host, ") serves ", kMaxClients,
        " processes already, which is its limit; end those of earlier starts "
        "of the job");
    observer_->OnClientRefused(client.hello.rank, reason);
    session::Refused refused = MakeRefused(Code::kResourceExhausted, reason);
    refused.header.version = client.hello.header.version;
    (void)link->Send(&refused, sizeof(refused));
    return;
  }
  clients_[id] = {std::move(link), client.hello.rank,
                  client.hello.header.version, client.pid};
  observer_->OnClient(client.hello, client.pid);
  core_.OnClient(id, client.hello, client.pid);
}

void ExecutorLogic::ReadAllClients() {
  std::vector<ClientId> ids;
  for (const auto& [id, client] : clients_) ids.push_back(id);
  for (const ClientId id : ids) ReadClient(id, kMessagesBeforeHandOver);
}

void ExecutorLogic::ReadClient(ClientId id, int max_messages) {
  if (const auto it = clients_.find(id); it != clients_.end()) {
    if (const Status s = it->second.link->Flush(); !s.ok()) {
      ClientGone(id, s.message());
      return DoActions();
    }
  }
  for (int i = 0; i < max_messages; ++i) {
    const auto it = clients_.find(id);
    if (it == clients_.end()) return;
    std::vector<char> message;
    descriptor_.Reset();
    const Status s = it->second.link->Receive(&message, &descriptor_);
    if (s.code() == Code::kDeadlineExceeded) return;
    if (!s.ok()) {
      ClientGone(id, absl::StrCat("its connection failed: ", s.message()));
    } else if (message.empty()) {
      ClientGone(id, "its connection closed without shutdown");
    } else if (!OnMessage(id, message)) {
      return;
    }
    DoActions();
  }
}

void ExecutorLogic::OnProcessEnded(ClientId id) {
  if (watched_.erase(id) > 0) return core_.OnProcessEnded(id);
  // Messages that it has sent before its end still count.
  ReadClient(id, kMessagesBeforeHandOver);
  if (clients_.contains(id)) {
    ClientGone(id, "its process ended without shutdown");
  }
}

bool ExecutorLogic::OnMessage(ClientId id, const std::vector<char>& data) {
  Status s = session::CheckHeader(data.data(), data.size(), "client");
  if (s.ok()) s = Dispatch(id, data);
  if (s.ok()) return true;
  ClientGone(id, absl::StrCat("it broke the session protocol: ", s.message()));
  return false;
}

Status ExecutorLogic::Dispatch(ClientId id, const std::vector<char>& data) {
  switch (session::TypeOf(data.data())) {
    case session::Type::kGoodbye:
      return Parsed<session::Goodbye>(data, [&](const auto& m) {
        timeline_.OnClientGone(id);
        core_.OnGoodbye(id, m.pending, m.returns != 0);
      });
    case session::Type::kLeaveReason:
      return Parsed<session::LeaveReason>(
          data, [&](const auto& m) { core_.OnLeaveReason(id, m.text); });
    case session::Type::kFinished:
      return Parsed<session::Finished>(
          data, [&](const auto& m) { core_.OnFinished(id, m.finished != 0); });
    case session::Type::kSlotReturn:
      return Parsed<session::SlotReturn>(
          data, [&](const auto& m) { core_.OnSlotReturn(id, m); });
    case session::Type::kSetRequest:
      return Parsed<session::SetRequest>(
          data, [&](const auto& m) { core_.OnSetRequest(id, m); });
    case session::Type::kJoinRequest:
      return Parsed<session::JoinRequest>(
          data, [&](const auto& m) { core_.OnJoinRequest(id, m); });
    case session::Type::kResultRecords:
      return Parsed<session::ResultRecords>(
          data, [&](const auto& m) { core_.OnResultRecords(id, m); });
    case session::Type::kGpuMemoryRequest:
      return Parsed<session::GpuMemoryRequest>(
          data, [&](const auto& m) { core_.OnGpuMemoryRequest(id, m); });
    case session::Type::kStateRequest:
      return Parsed<session::StateRequest>(
          data, [&](const auto& m) { OnStateRequest(id, m); });
    case session::Type::kTimelineRequest:
      return Parsed<session::TimelineRequest>(
          data, [&](const auto& m) { timeline_.OnRequest(id, m); });
    case session::Type::kTimelineFile:
      return Parsed<session::TimelineFile>(
          data, [&](const auto& m) { OnTimelineFile(id, m); });
    case session::Type::kTimelineRecords:
      return Parsed<session::TimelineRecords>(
          data, [&](const auto& m) { timeline_.OnRecords(id, m); });
    default:
      return Parsed<session::SlotRequest>(
          data, [&](const auto& m) { core_.OnSlotRequest(id, m); });
  }
}

void ExecutorLogic::ClientGone(ClientId id, const std::string& how) {
  observer_->OnClientGone(clients_.at(id).rank, how);
  clients_.erase(id);
  timeline_.OnClientGone(id);
  core_.OnClientGone(id, how);
}

void ExecutorLogic::Send(ClientId id, void* message, size_t bytes) {
  const auto it = clients_.find(id);
  if (it == clients_.end()) return;
  session::SetVersion(message, it->second.version);
  if (const Status s = it->second.link->Send(message, bytes); !s.ok()) {
    ClientGone(id, s.message());
  }
}

// --- Actions -----------------------------------------------------------------

void ExecutorLogic::Do(ReplyClient& a) {
  auto* slot = std::get_if<session::SlotReply>(&a.reply);
  if (slot != nullptr && slot->code == 0 && keeper_ != nullptr &&
      !keeper_->IsAllotted(slot->slot)) {
    // There was no memory for the slot, which has aborted the epoch.
    const Status why = keeper_->board().AbortStatus();
    slot->code =
        static_cast<uint32_t>(why.ok() ? Code::kResourceExhausted : why.code());
    session::SetText(slot->text, why.ok() ? "no memory" : why.message());
  }
  std::visit([&](auto& reply) { Send(a.client, &reply, sizeof(reply)); },
             a.reply);
  // A rank that sleeps on the board does not watch its socket.
  if (keeper_ != nullptr) keeper_->board().WakeRanks();
}

void ExecutorLogic::Do(RefuseClient& a) {
  const auto it = clients_.find(a.client);
  observer_->OnClientRefused(it == clients_.end() ? -1 : it->second.rank,
                             a.text);
  session::Refused refused = MakeRefused(a.code, a.text);
  Send(a.client, &refused, sizeof(refused));
  clients_.erase(a.client);
}

void ExecutorLogic::Do(CloseClient& a) {
  timeline_.OnClientGone(a.client);
  clients_.erase(a.client);
}

void ExecutorLogic::Do(KeepWatching& a) {
  const auto it = clients_.find(a.client);
  if (it == clients_.end()) return;
  std::unique_ptr<ProcessWatch> process = it->second.link->KeepProcess();
  if (process != nullptr) {
    watched_[a.client] = std::move(process);
  } else {
    core_.OnProcessEnded(a.client);  // its end could not be noticed
  }
}

void ExecutorLogic::Do(StopWatching& a) { watched_.erase(a.client); }

}  // namespace maypole::worker
