#include "worker/executor/executor_clients.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/core/limits.h"

namespace maypole::worker {
namespace {

// At most this many messages of a client are read in a turn, so that a client
// that floods the executor does not starve the others.
constexpr int kMessagesPerTurn = 32;
// Before a new client is admitted, all messages of the other clients are read;
// this is more than a socket's buffer holds.
constexpr int kMessagesBeforeHandOver = 16384;

session::Refused MakeRefused(Code code, const std::string& text) {
  auto refused = session::Make<session::Refused>();
  refused.code = static_cast<uint32_t>(code);
  session::SetText(refused.text, text);
  return refused;
}

}  // namespace

bool ExecutorClients::Admit(ClientId id, const ArrivingClient& client,
                            std::unique_ptr<ClientLink> link) {
  ReadAll();
  if (clients_.size() >= kMaxClients) {
    const std::string reason = absl::StrCat(
        "rank ", client.hello.rank, " of job '", options_.job,
        "' is refused: the job's executor on node ", options_.node, " (host ",
        options_.host, ") serves ", kMaxClients,
        " processes already, which is its limit; end those of earlier starts "
        "of the job");
    observer_.OnClientRefused(client.hello.rank, reason);
    session::Refused refused = MakeRefused(Code::kResourceExhausted, reason);
    refused.header.version = client.hello.header.version;
    (void)link->Send(&refused, sizeof(refused));
    return false;
  }
  clients_[id] = {std::move(link), client.hello.rank,
                  client.hello.header.version, client.pid};
  observer_.OnClient(client.hello, client.pid);
  return true;
}

void ExecutorClients::ReadAll() {
  std::vector<ClientId> ids;
  for (const auto& [id, client] : clients_) ids.push_back(id);
  for (const ClientId id : ids) Read(id, kMessagesBeforeHandOver);
}

void ExecutorClients::OnReadable(ClientId id) { Read(id, kMessagesPerTurn); }

void ExecutorClients::Read(ClientId id, int max_messages) {
  if (const auto it = clients_.find(id); it != clients_.end()) {
    if (const Status s = it->second.link->Flush(); !s.ok()) {
      Gone(id, s.message());
      return handler_.AfterMessage();
    }
  }
  for (int i = 0; i < max_messages; ++i) {
    const auto it = clients_.find(id);
    if (it == clients_.end()) return;
    std::vector<char> message;
    descriptor_.Reset();
    Status s = it->second.link->Receive(&message, &descriptor_);
    if (s.code() == Code::kDeadlineExceeded) return;
    if (!s.ok()) {
      Gone(id, absl::StrCat("its connection failed: ", s.message()));
    } else if (message.empty()) {
      Gone(id, "its connection closed without shutdown");
    } else {
      s = session::CheckHeader(message.data(), message.size(), "client");
      if (s.ok()) s = handler_.OnMessage(id, message);
      if (!s.ok()) {
        Gone(id, absl::StrCat("it broke the session protocol: ", s.message()));
      }
    }
    handler_.AfterMessage();
  }
}

void ExecutorClients::OnProcessEnded(ClientId id) {
  if (watched_.erase(id) > 0) return handler_.OnProcessEnded(id);
  // Messages that the process sent before its end still count.
  Read(id, kMessagesBeforeHandOver);
  if (clients_.contains(id)) Gone(id, "its process ended without shutdown");
}

void ExecutorClients::Gone(ClientId id, const std::string& how) {
  const auto it = clients_.find(id);
  if (it == clients_.end()) return;
  observer_.OnClientGone(it->second.rank, how);
  clients_.erase(it);
  handler_.OnClientGone(id, how);
}

void ExecutorClients::Send(ClientId id, void* message, size_t bytes) {
  const auto it = clients_.find(id);
  if (it == clients_.end()) return;
  session::SetVersion(message, it->second.version);
  if (const Status s = it->second.link->Send(message, bytes); !s.ok()) {
    Gone(id, s.message());
  }
}

void ExecutorClients::SendState(ClientId id, session::StateReply* reply,
                                const Fd* state) {
  const auto it = clients_.find(id);
  if (it == clients_.end()) return;
  session::SetVersion(reply, it->second.version);
  if (const Status s = it->second.link->SendState(*reply, state); !s.ok()) {
    Gone(id, s.message());
  }
}

void ExecutorClients::Welcome(ClientId id, const session::Welcome& welcome,
                              const Board& board, const BoardWake& wake) {
  const auto it = clients_.find(id);
  if (it == clients_.end()) return;
  it->second.version = welcome.header.version;
  const Status s = it->second.link->SendWelcome(welcome, board, wake);
  if (!s.ok()) Gone(id, s.message());
}

void ExecutorClients::Refuse(const RefuseClient& refusal) {
  const auto it = clients_.find(refusal.client);
  observer_.OnClientRefused(it == clients_.end() ? -1 : it->second.rank,
                            refusal.text);
  session::Refused refused = MakeRefused(refusal.code, refusal.text);
  Send(refusal.client, &refused, sizeof(refused));
  Close(refusal.client);
}

bool ExecutorClients::KeepWatching(ClientId id) {
  const auto it = clients_.find(id);
  if (it == clients_.end()) return true;
  std::unique_ptr<ProcessWatch> process = it->second.link->KeepProcess();
  if (process == nullptr) return false;
  watched_[id] = std::move(process);
  return true;
}

}  // namespace maypole::worker
