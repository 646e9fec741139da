// The clients' side of the executor: their sockets and messages.
#include <spdlog/spdlog.h>
#include <sys/epoll.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log_value.h"
#include "common/unix_socket.h"
#include "worker/session/executor.h"
#include "worker/session/executor_tags.h"

namespace maypole::worker {
namespace {

// Before a new client is taken in, all that the others have sent is read: more
// than a socket's buffer holds.
constexpr int kMessagesBeforeHandOver = 16384;

// Parses the message and gives it to `take`.
template <typename Message, typename Take>
Status Handle(const std::vector<char>& data, Take take) {
  Message message;
  const Status s = session::Parse(data.data(), data.size(), &message);
  if (s.ok()) take(message);
  return s;
}

}  // namespace

void Executor::ReadAllClients() {
  std::vector<ClientId> ids;
  for (const auto& [id, client] : clients_) ids.push_back(id);
  for (const ClientId id : ids) OnClientReady(id, kMessagesBeforeHandOver);
}

void Executor::OnClientReady(ClientId id, int max_messages) {
  if (const auto it = clients_.find(id);
      it != clients_.end() && it->second.wants_to_write()) {
    if (const Status s = it->second.Flush(); !s.ok()) {
      ClientGone(id, s.message());
      return DoActions();
    }
    if (!it->second.wants_to_write()) WatchWrites(id, false);
  }
  for (int i = 0; i < max_messages; ++i) {
    const auto it = clients_.find(id);
    if (it == clients_.end()) return;
    Received message;
    const Status s = ReceiveMessage(it->second.socket(),
                                    session::kMaxMessageBytes, 0, &message);
    if (s.code() == Code::kDeadlineExceeded || s.code() == Code::kCancelled) {
      return;
    }
    if (!s.ok()) {
      ClientGone(id, absl::StrCat("its connection failed: ", s.message()));
    } else if (message.data.empty()) {
      ClientGone(id, "its connection closed without shutdown");
    } else if (!OnClientMessage(id, message.data)) {
      return;
    }
    DoActions();
  }
}

bool Executor::OnClientMessage(ClientId id, const std::vector<char>& data) {
  Status s = session::CheckHeader(data.data(), data.size(), "client");
  if (s.ok()) s = Dispatch(id, data);
  if (s.ok()) return true;
  ClientGone(id, absl::StrCat("it broke the session protocol: ", s.message()));
  return false;
}

Status Executor::Dispatch(ClientId id, const std::vector<char>& data) {
  switch (session::TypeOf(data.data())) {
    case session::Type::kGoodbye:
      return Handle<session::Goodbye>(data, [&](const auto& m) {
        core_.OnGoodbye(id, m.pending, m.returns != 0);
      });
    case session::Type::kSetRequest:
      return Handle<session::SetRequest>(
          data, [&](const auto& m) { core_.OnSetRequest(id, m); });
    case session::Type::kJoinRequest:
      return Handle<session::JoinRequest>(
          data, [&](const auto& m) { core_.OnJoinRequest(id, m); });
    default:
      return Handle<session::SlotRequest>(
          data, [&](const auto& m) { core_.OnSlotRequest(id, m); });
  }
}

void Executor::ClientGone(ClientId id, const std::string& how) {
  spdlog::warn("event=client_gone job={} client={} how={}", options_.core.job,
               id, LogValue(how));
  stats_->Count(ErrorKind::kRankLost);
  clients_.erase(id);
  core_.OnClientGone(id, how);
}

void Executor::SendToClient(ClientId id, const void* data, size_t bytes,
                            std::vector<int> fds) {
  const auto it = clients_.find(id);
  if (it == clients_.end()) return;
  const bool watched = it->second.wants_to_write();
  if (const Status s = it->second.Send(data, bytes, fds); !s.ok()) {
    return ClientGone(id, s.message());
  }
  if (!watched && it->second.wants_to_write()) WatchWrites(id, true);
}

void Executor::WatchWrites(ClientId id, bool wanted) {
  epoll_event event{};
  event.events = wanted ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.u64 = SocketTag(id);
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, clients_.at(id).socket(), &event);
}

void Executor::Do(ReplyClient& a) {
  auto* slot = std::get_if<session::SlotReply>(&a.reply);
  if (slot != nullptr && slot->code == 0 && keeper_ != nullptr &&
      !keeper_->IsAllotted(slot->slot)) {
    const Status why = keeper_->board().AbortStatus();
    slot->code = static_cast<uint32_t>(why.code());
    session::SetText(slot->text, why.message());
  }
  std::visit(
      [&](const auto& reply) { SendToClient(a.client, &reply, sizeof(reply)); },
      a.reply);
  // A rank that sleeps on the board does not see its socket.
  if (keeper_ != nullptr) keeper_->board().WakeRanks();
}

void Executor::Do(RefuseClient& a) {
  spdlog::warn("event=client_refused job={} client={} reason={}",
               options_.core.job, a.client, LogValue(a.text));
  stats_->Count(ErrorKind::kRefused);
  auto refused = session::Make<session::Refused>();
  refused.code = static_cast<uint32_t>(a.code);
  session::SetText(refused.text, a.text);
  SendToClient(a.client, &refused, sizeof(refused));
  clients_.erase(a.client);
}

void Executor::Do(CloseClient& a) { clients_.erase(a.client); }

void Executor::Do(KeepWatching& a) {
  const auto it = clients_.find(a.client);
  if (it == clients_.end()) return;
  Fd pidfd = it->second.TakePidFd();
  if (pidfd.valid()) {
    kept_pidfds_[a.client] = std::move(pidfd);
  } else {
    core_.OnProcessEnded(a.client);  // nobody could say so
  }
}

void Executor::Do(StopWatching& a) { kept_pidfds_.erase(a.client); }

}  // namespace maypole::worker
