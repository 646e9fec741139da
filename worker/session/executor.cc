#include "worker/session/executor.h"

#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/absl_status.h"
#include "common/unix_socket.h"
#include "worker/core/limits.h"
#include "worker/session/control.h"

namespace maypole::worker {
namespace {

enum Tag : uint64_t {
  kControl = 1,
  kMailbox = 2,
  kBoardWake = 3,
  kStopSignal = 4,
  kFirstClient = 16,  // then two per client: socket, pidfd
};

constexpr int kTickMs = 500;
constexpr int kMaxEvents = 512;  // more than there are descriptors
// A client that floods us is read this far, then others have their turn.
constexpr int kMessagesPerTurn = 32;
// Before a new client is taken in, all that the others have sent is read: more
// than a socket's buffer holds.
constexpr int kMessagesBeforeHandOver = 16384;

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int64_t NowMs() { return NowNs() / 1000000; }

uint64_t SocketTag(ClientId id) { return kFirstClient + 2 * id; }
uint64_t PidTag(ClientId id) { return SocketTag(id) + 1; }

}  // namespace

Executor::Executor(ExecutorOptions options, Fd control, SharedStats stats)
    : options_(std::move(options)),
      core_(options_.core),
      stats_(std::move(stats)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      control_(std::move(control)) {
  Watch(control_.get(), kControl);
  Watch(mailbox_.fd(), kMailbox);
}

Executor::~Executor() {
  // Their threads post to the mailbox and look at the board.
  transport_.reset();
  network_.reset();
}

void Executor::Watch(int fd, uint64_t tag) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = tag;
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

absl::Status Executor::Run(Fd stop_signals) {
  stop_signals_ = std::move(stop_signals);
  if (stop_signals_.valid()) Watch(stop_signals_.get(), kStopSignal);
  core_.OnTime(NowMs());
  while (!done_) {
    if (keeper_ != nullptr) {
      // First say that we sleep, then look: who comes later wakes us.
      keeper_->SetSleeping(true);
      for (const SlotNews& news : keeper_->TakeNews()) core_.OnNews(news);
      DoActions();
    }
    if (!Sleep()) return ToAbsl(ErrnoStatus(errno, "epoll_wait"));
    if (!control_.valid() && clients_.empty()) done_ = true;
  }
  return absl::OkStatus();
}

bool Executor::Sleep() {
  epoll_event events[kMaxEvents];
  const bool hurry = keeper_ != nullptr && keeper_->somebody_left();
  const int n = epoll_wait(epoll_.get(), events, kMaxEvents,
                           hurry ? static_cast<int>(kLeftScanMs) : kTickMs);
  if (n < 0 && errno != EINTR) return false;
  if (keeper_ != nullptr) keeper_->SetSleeping(false);
  Tick();
  // New clients last (see OnHandOver).
  bool control = false;
  for (int i = 0; i < n; ++i) {
    control = control || events[i].data.u64 == kControl;
    if (events[i].data.u64 != kControl) HandleEvent(events[i].data.u64);
  }
  if (control) HandleEvent(kControl);
  return true;
}

void Executor::Tick() {
  core_.OnTime(NowMs());
  DoActions();
  if (keeper_ == nullptr) return;
  if (keeper_->somebody_left()) keeper_->FailWaiting();
  if (network_ == nullptr) keeper_->CountLocalOperations(&*stats_);
  CountNetworkBytes();
}

void Executor::CountNetworkBytes() {
  if (network_ == nullptr) return;
  const uint64_t sent = network_->bytes_sent();
  const uint64_t received = network_->bytes_received();
  StatsPage::Add(stats_->network_sent, sent - counted_sent_);
  StatsPage::Add(stats_->network_received, received - counted_received_);
  counted_sent_ = sent;
  counted_received_ = received;
}

void Executor::HandleEvent(uint64_t tag) {
  switch (tag) {
    case kControl:
      OnControl();
      break;
    case kMailbox:
      mailbox_.RunAll();
      break;
    case kBoardWake: {
      uint64_t count;
      [[maybe_unused]] const ssize_t n =
          read(board_wake_.get(), &count, sizeof(count));
      break;
    }
    case kStopSignal:
      OnStopSignal();
      break;
    default: {
      const ClientId id = (tag - kFirstClient) / 2;
      OnClientReady(id, kMessagesPerTurn);
      if (tag == PidTag(id) && clients_.contains(id)) {
        ClientGone(id, "its process ended without shutdown");
      }
    }
  }
  DoActions();
}

// --- Supervisor --------------------------------------------------------------

void Executor::OnControl() {
  Received message;
  const Status s =
      ReceiveMessage(control_.get(), control::kMaxMessageBytes, 0, &message);
  if (s.code() == Code::kDeadlineExceeded || s.code() == Code::kCancelled) {
    return;
  }
  if (!s.ok() || message.data.empty()) {
    if (idle_reported_) {
      spdlog::info("event=end job={} reason=\"idle\"", options_.core.job);
    } else {
      spdlog::warn("event=supervisor_gone job={}", options_.core.job);
    }
    control_.Reset();
    return;
  }
  OnHandOver(message.data.data(), message.data.size(), std::move(message.fds));
}

void Executor::OnHandOver(const char* data, size_t bytes, std::vector<Fd> fds) {
  control::HandOver hand_over;
  if (bytes != sizeof(hand_over) || fds.empty()) return;
  std::memcpy(&hand_over, data, sizeof(hand_over));
  ++received_;
  idle_reported_ = false;
  // A rank that comes again has left before: its Goodbye may stand behind
  // hundreds of requests in its old socket.
  ReadAllClients();
  if (clients_.size() >= kMaxClients) return;
  const ClientId id = next_client_++;
  const Connection& client =
      clients_
          .try_emplace(id, std::move(fds[0]),
                       fds.size() > 1 ? std::move(fds[1]) : Fd())
          .first->second;
  Watch(client.socket(), SocketTag(id));
  if (client.pidfd().valid()) Watch(client.pidfd().get(), PidTag(id));
  spdlog::info("event=client job={} rank={} pid={}", options_.core.job,
               hand_over.hello.rank, hand_over.pid);
  core_.OnClient(id, hand_over.hello, hand_over.pid);
}

void Executor::OnStopSignal() {
  signalfd_siginfo info;
  [[maybe_unused]] const ssize_t n =
      read(stop_signals_.get(), &info, sizeof(info));
  core_.OnStop(absl::StrCat("the executor of job '", options_.core.job,
                            "' on node ", options_.core.node, " (host ",
                            options_.core.host, ") was stopped (SIGTERM)"));
  DoActions();
  done_ = true;
}

void Executor::Do(ReportIdle&) {
  control::Idle idle{received_};
  idle_reported_ = true;
  if (control_.valid()) {
    (void)SendMessage(control_.get(), &idle, sizeof(idle));
  }
}

// --- Clients -----------------------------------------------------------------

void Executor::ReadAllClients() {
  std::vector<ClientId> ids;
  for (const auto& [id, client] : clients_) ids.push_back(id);
  for (const ClientId id : ids) OnClientReady(id, kMessagesBeforeHandOver);
}

void Executor::OnClientReady(ClientId id, int max_messages) {
  if (const auto it = clients_.find(id);
      it != clients_.end() && it->second.wants_to_write()) {
    it->second.Flush();
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
  if (s.ok() && session::TypeOf(data.data()) == session::Type::kGoodbye) {
    session::Goodbye goodbye;
    s = session::Parse(data.data(), data.size(), &goodbye);
    if (s.ok()) {
      core_.OnGoodbye(id, goodbye.pending);
      return true;
    }
  } else if (s.ok()) {
    session::SlotRequest request;
    s = session::Parse(data.data(), data.size(), &request);
    if (s.ok()) {
      core_.OnSlotRequest(id, request);
      return true;
    }
  }
  ClientGone(id, absl::StrCat("it broke the session protocol: ", s.message()));
  return false;
}

void Executor::ClientGone(ClientId id, const std::string& how) {
  spdlog::warn("event=client_gone job={} client={} how=\"{}\"",
               options_.core.job, id, how);
  stats_->Count(ErrorKind::kRankLost);
  clients_.erase(id);
  core_.OnClientGone(id, how);
}

void Executor::SendToClient(ClientId id, const void* data, size_t bytes,
                            std::vector<int> fds) {
  const auto it = clients_.find(id);
  if (it == clients_.end()) return;
  const bool watched = it->second.wants_to_write();
  if (!it->second.Send(data, bytes, fds)) {
    return ClientGone(id, "it does not read what the executor sends");
  }
  if (!watched && it->second.wants_to_write()) WatchWrites(id, true);
}

void Executor::WatchWrites(ClientId id, bool wanted) {
  epoll_event event{};
  event.events = wanted ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.u64 = SocketTag(id);
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, clients_.at(id).socket(), &event);
}

void Executor::Do(ReplySlot& a) {
  SendToClient(a.client, &a.reply, sizeof(a.reply));
  // A rank that sleeps on the board does not see its socket.
  if (keeper_ != nullptr) keeper_->board().WakeRanks();
}

void Executor::Do(RefuseClient& a) {
  spdlog::warn("event=client_refused job={} client={} reason=\"{}\"",
               options_.core.job, a.client, a.text);
  stats_->Count(ErrorKind::kRefused);
  auto refused = session::Make<session::Refused>();
  refused.code = static_cast<uint32_t>(a.code);
  session::SetText(refused.text, a.text);
  SendToClient(a.client, &refused, sizeof(refused));
  clients_.erase(a.client);
}

void Executor::Do(CloseClient& a) { clients_.erase(a.client); }

// --- Coordinator -------------------------------------------------------------

void Executor::Do(OpenLink&) {
  transport_.reset();
  presence_sequence_ = 0;
  const uint64_t number = ++link_number_;
  const auto post = [this, number](std::function<void()> letter) {
    mailbox_.Post([this, number, letter = std::move(letter)] {
      if (number == link_number_) letter();
    });
  };
  TransportCallbacks callbacks;
  callbacks.on_message = [this, post](proto::CoordinatorMessage message) {
    post(
        [this, message = std::move(message)] { core_.OnCoordinator(message); });
  };
  callbacks.on_acknowledged = [this, post](uint64_t sequence) {
    post([this, sequence] {
      if (presence_sequence_ == 0 || sequence < presence_sequence_) return;
      presence_sequence_ = 0;
      core_.OnPresenceAcknowledged();
      DoActions();  // the next Presence must not be taken for this one
    });
  };
  callbacks.on_reconnected = [this, post] {
    StatsPage::Add(stats_->reconnects, 1);
    spdlog::warn("event=coordinator_reconnected job={}", options_.core.job);
  };
  callbacks.on_lost = [this, post](absl::Status status) {
    post([this, status = std::move(status)] {
      spdlog::error("event=coordinator_lost job={} reason=\"{}\"",
                    options_.core.job, std::string(status.message()));
      stats_->Count(ErrorKind::kCoordinatorLost);
      transport_.reset();
      core_.OnLinkLost(status);
    });
  };
  transport_ = options_.make_transport(std::move(callbacks));
}

void Executor::Do(SendToCoordinator& a) {
  if (transport_ == nullptr) return;
  const bool presence = a.message.has_presence();
  if (presence) {
    StatsPage::Add(
        stats_->presence,
        static_cast<uint64_t>(a.message.presence().operations_size()));
  }
  const uint64_t sequence = transport_->Send(std::move(a.message));
  if (presence) presence_sequence_ = sequence;
}

// --- Epoch -------------------------------------------------------------------

void Executor::Do(PrepareBackend& a) {
  const auto nodes = static_cast<uint32_t>(a.node_names.size());
  const uint64_t number = ++network_number_;
  const auto post = [this, number](std::function<void()> letter) {
    mailbox_.Post([this, number, letter = std::move(letter)] {
      if (number == network_number_) letter();
    });
  };
  Network::Callbacks callbacks;
  callbacks.on_prepared =
      [this, post](absl::StatusOr<std::vector<std::string>> addresses) {
        post([this, addresses] { core_.OnBackendPrepared(addresses); });
      };
  callbacks.on_connected = [this, post](absl::Status s) {
    post([this, s] { core_.OnBackendConnected(s); });
  };
  callbacks.on_failed = [this, post](absl::Status s) {
    post([this, s] {
      spdlog::error("event=network_failed job={} reason=\"{}\"",
                    options_.core.job, std::string(s.message()));
      stats_->Count(ErrorKind::kNetwork);
      core_.OnNetworkFailed(s);
    });
  };
  callbacks.runner.on_done = [this](const RunSpec& run) {
    stats_->ObserveRun(NowNs() - run.issued_ns);
  };
  callbacks.runner.on_free = [this, post](uint32_t record) {
    post([this, record] { core_.OnRunFree(record); });
  };
  network_ = std::make_unique<Network>(
      options_.make_backend(a.epoch, a.node_names), std::move(callbacks));
  network_->Prepare(a.node_index, nodes);
}

void Executor::Do(ConnectBackend& a) {
  if (network_ != nullptr) network_->Connect(std::move(a.addresses));
}

void Executor::Do(CreateBoard& a) {
  std::unique_ptr<Board> board;
  absl::Status s = ToAbsl(Board::Create(a.config, &board));
  if (s.ok()) {
    keeper_ = std::make_unique<BoardKeeper>(std::move(board));
    board_wake_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    Watch(board_wake_.get(), kBoardWake);
    for (uint32_t i = 0; i < a.pids.size(); ++i) {
      keeper_->MarkPresent(i, a.pids[i]);
    }
    if (network_ != nullptr) network_->Start(&keeper_->board());
    stats_->local_ranks = a.config.local_size;
    stats_->board_bytes = keeper_->board().bytes();
    StatsPage::Add(stats_->epochs, 1);
    spdlog::info("event=epoch_start job={} epoch={} ranks={} local={} nodes={}",
                 options_.core.job, a.config.epoch, a.config.size,
                 a.config.local_size, a.config.nodes);
  }
  if (core_.OnBoardCreated(s)) Welcome(a);
}

void Executor::Welcome(const CreateBoard& a) {
  for (uint32_t i = 0; i < a.clients.size(); ++i) {
    auto welcome = session::Make<session::Welcome>();
    welcome.epoch = a.config.epoch;
    welcome.local_rank = i;
    SendToClient(a.clients[i], &welcome, sizeof(welcome),
                 {keeper_->board().fd(), board_wake_.get()});
  }
}

void Executor::Do(AllotSlot& a) {
  if (keeper_ != nullptr) keeper_->Allot(a.slot, a.identity);
}

void Executor::Do(IssueRun& a) {
  // After an abort no ticket may be placed any more.
  if (keeper_ == nullptr || network_ == nullptr || keeper_->board().aborted()) {
    return;
  }
  const int kind = static_cast<int>(a.run.kind);
  StatsPage::Add(stats_->operations[kind], a.run.operations.size());
  StatsPage::Add(stats_->operation_bytes[kind], a.run.bytes);
  StatsPage::Add(stats_->runs, 1);
  a.run.issued_ns = NowNs();
  keeper_->WritePlan(a.run);
  network_->Add(a.run);
  keeper_->Issue(a.run);
}

void Executor::Do(FailSlot& a) {
  if (keeper_ == nullptr) return;
  spdlog::warn("event=operation_failed job={} reason=\"{}\"", options_.core.job,
               a.text);
  stats_->Count(ErrorKind::kOperationFailed);
  keeper_->board().Fail(a.slot, a.generation, a.code, a.text);
}

void Executor::Do(MarkLeft& a) {
  if (keeper_ == nullptr) return;
  spdlog::info("event=rank_left job={} text=\"{}\"", options_.core.job, a.text);
  keeper_->MarkLeft(a.local_rank, a.text);
}

void Executor::Do(MarkGone& a) {
  if (keeper_ != nullptr)
    keeper_->MarkGone(static_cast<uint32_t>(a.local_rank));
}

void Executor::Do(AbortBoard& a) {
  spdlog::error("event=epoch_aborted job={} reason=\"{}\"", options_.core.job,
                a.text);
  stats_->Count(ErrorKind::kEpochAborted);
  if (keeper_ != nullptr) keeper_->board().Abort(a.code, a.text);
  if (network_ != nullptr) network_->Abort();
}

void Executor::Do(DropEpoch&) {
  spdlog::info("event=epoch_over job={}", options_.core.job);
  ++network_number_;
  if (keeper_ != nullptr && network_ == nullptr) {
    keeper_->CountLocalOperations(&*stats_);
  }
  CountNetworkBytes();
  network_.reset();
  counted_sent_ = counted_received_ = 0;
  keeper_.reset();
  board_wake_.Reset();
  stats_->local_ranks = 0;
  stats_->board_bytes = 0;
}

void Executor::DoActions() {
  for (auto actions = core_.TakeActions(); !actions.empty();
       actions = core_.TakeActions()) {
    for (Action& action : actions) {
      std::visit([this](auto& a) { Do(a); }, action);
    }
  }
}

}  // namespace maypole::worker
