#include "tests/simulation/executor.h"

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/absl_status.h"
#include "worker/core/limits.h"

namespace maypole::simulation {
namespace {

constexpr int64_t kTick = worker::kBoardLookMs * kMillisecond;
constexpr int64_t kHeldTicket = 5 * kMillisecond;
constexpr int kMessagesPerTurn = 32;
constexpr int kMessagesBeforeHandOver = 16384;
// A network thread that sleeps looks around this often.
constexpr int64_t kNetworkSleep = 100 * kMillisecond;

// Parses the message and gives it to `take`.
template <typename Message, typename Take>
Status Handle(const std::vector<char>& data, Take take) {
  Message message;
  const Status s = session::Parse(data.data(), data.size(), &message);
  if (s.ok()) take(message);
  return s;
}

void CloseConnection(Connection* connection) {
  connection->to_executor.on_readable = nullptr;
  connection->to_client.Close();
}

}  // namespace

Executor::Executor(Options options)
    : options_(std::move(options)),
      stage_(options_.stage),
      core_(options_.core),
      loop_(&stage_->scheduler, [this] { LoopTurn(); }) {}

Executor::~Executor() = default;

void Executor::Start() {
  core_.OnTime(stage_->scheduler.now() / kMillisecond);
  WakeLoop();
}

void Executor::Kill() {
  life_.reset();
  if (transport_ != nullptr) transport_->Die();
  DropNetwork();
  keeper_.reset();
  for (auto& [id, client] : clients_) CloseConnection(client.get());
  for (HandOver& h : hand_overs_) CloseConnection(h.connection.get());
  clients_.clear();
  hand_overs_.clear();
}

void Executor::End() {
  if (transport_ != nullptr) transport_->Close();
  transport_.reset();
  Kill();
}

// --- The loop ----------------------------------------------------------------

void Executor::WakeLoop() {
  if (life_ == nullptr) return;
  woken_ = true;
  loop_.Ask(stage_->SoonDelay(), life_);
}

void Executor::WakeByBoard() {
  if (!stage_->Spoils(Sabotage::kNoWake, 16)) WakeLoop();
}

void Executor::Post(std::function<void()> letter) {
  letters_.push_back(std::move(letter));
  WakeLoop();
}

void Executor::LoopTurn() {
  const bool woken = std::exchange(woken_, false);
  const bool had_board = keeper_ != nullptr;
  if (keeper_ != nullptr) keeper_->SetSleeping(false);
  core_.OnTime(stage_->scheduler.now() / kMillisecond);
  DoActions();
  if (keeper_ != nullptr && keeper_->somebody_left()) keeper_->FailWaiting();
  std::vector<ClientId> ready;
  for (const auto& [id, client] : clients_) {
    if (client->to_executor.readable()) ready.push_back(id);
  }
  stage_->random.Shuffle(&ready);
  const bool letters_first = stage_->random.OneIn(2);
  if (letters_first) RunLetters();
  for (const ClientId id : ready) ReadClient(id, kMessagesPerTurn);
  if (!letters_first) RunLetters();
  HandOvers();
  DoActions();
  if (keeper_ != nullptr) {
    // First say that we sleep, then look: who comes later wakes us.
    keeper_->SetSleeping(true);
    for (worker::SlotNews& news : keeper_->TakeNews()) {
      if (!woken && had_board && !stage_->SomebodyOwesAWake()) {
        stage_->Found("node ", options_.node,
                      ": news, and nobody has woken "
                      "the executor");
      }
      if (stage_->Spoils(Sabotage::kNoMismatch, 2)) {
        for (Signature& s : news.signatures) s = news.signatures.front();
      }
      core_.OnNews(news);
    }
    DoActions();
  }
  LookAround();
  loop_.Ask(SleepTime(), life_);
  for (const auto& [id, client] : clients_) {
    if (client->to_executor.readable()) WakeLoop();
  }
}

int64_t Executor::SleepTime() {
  if (keeper_ == nullptr) return kTick;
  if (keeper_->PlaceHeldTickets()) return kHeldTicket;
  const bool hurry = keeper_->somebody_left() || keeper_->AllSayBlocked();
  return hurry ? std::min(worker::kLeftScanMs, worker::kBlockedLookMs) *
                     kMillisecond
               : kTick;
}

void Executor::LookAround() {
  if (keeper_ == nullptr) return;
  const int64_t now = stage_->scheduler.now() / kMillisecond;
  const int64_t pause =
      keeper_->AllSayBlocked() ? worker::kBlockedLookMs : worker::kBoardLookMs;
  if (now - looked_ms_ < pause && !core_.wants_look()) return;
  looked_ms_ = now;
  core_.OnTime(now);
  // Nobody is asked for: there are no processes to look at.
  core_.OnLook(keeper_->Look(0));
  DoActions();
}

void Executor::RunLetters() {
  for (auto& letter : std::exchange(letters_, {})) {
    letter();
    DoActions();
  }
}

// --- Clients -----------------------------------------------------------------

void Executor::TakeClient(std::shared_ptr<Connection> connection,
                          const session::Hello& hello) {
  hand_overs_.push_back({std::move(connection), hello});
  WakeLoop();
}

void Executor::HandOvers() {
  for (HandOver& h : std::exchange(hand_overs_, {})) {
    idle_ = false;
    // A rank that comes again has left before: read that first.
    std::vector<ClientId> ids;
    for (const auto& [id, client] : clients_) ids.push_back(id);
    for (const ClientId id : ids) ReadClient(id, kMessagesBeforeHandOver);
    const ClientId id = next_client_++;
    h.connection->to_executor.on_readable = [this] { WakeLoop(); };
    clients_[id] = std::move(h.connection);
    core_.OnClient(id, h.hello, h.hello.pid);
    DoActions();
  }
}

void Executor::ReadClient(ClientId id, int max_messages) {
  for (int i = 0; i < max_messages; ++i) {
    const auto it = clients_.find(id);
    if (it == clients_.end()) return;
    Pipe& pipe = it->second->to_executor;
    if (pipe.messages.empty()) {
      if (pipe.closed) {
        if (stage_->Spoils(Sabotage::kIgnoreDeath, 1)) return;
        ClientGone(id, "its connection closed without shutdown");
      }
      return DoActions();
    }
    const Message message = std::move(pipe.messages.front());
    pipe.messages.pop_front();
    const Status s = OnClientMessage(id, message.data);
    if (!s.ok()) stage_->Found("a client breaks the protocol: ", s.message());
    DoActions();
  }
}

Status Executor::OnClientMessage(ClientId id, const std::vector<char>& data) {
  if (Status s = session::CheckHeader(data.data(), data.size(), "client");
      !s.ok()) {
    return s;
  }
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
  worker::CloseClient close{id};
  Do(close);
  core_.OnClientGone(id, how);
}

void Executor::SendToClient(ClientId id, const void* data, size_t bytes,
                            Fd board) {
  const auto it = clients_.find(id);
  if (it != clients_.end()) {
    it->second->to_client.Send(data, bytes, std::move(board));
  }
}

void Executor::Do(worker::ReplyClient& a) {
  std::visit(
      [&](const auto& reply) {
        SendToClient(a.client, &reply, sizeof(reply), Fd());
      },
      a.reply);
  if (keeper_ != nullptr) keeper_->board().WakeRanks();
}

void Executor::Do(worker::RefuseClient& a) {
  auto refused = session::Make<session::Refused>();
  refused.code = static_cast<uint32_t>(a.code);
  session::SetText(refused.text, a.text);
  SendToClient(a.client, &refused, sizeof(refused), Fd());
  worker::CloseClient close{a.client};
  Do(close);
}

void Executor::Do(worker::CloseClient& a) {
  const auto it = clients_.find(a.client);
  if (it == clients_.end()) return;
  CloseConnection(it->second.get());
  clients_.erase(it);
}

// --- Coordinator -------------------------------------------------------------

// As on a node that does not see its clients' processes.
void Executor::Do(worker::KeepWatching& a) { core_.OnProcessEnded(a.client); }

void Executor::Do(worker::OpenLink&) {
  if (transport_ != nullptr) transport_->Close();
  presence_sequence_ = 0;
  const uint64_t number = ++link_number_;
  const auto post = [this, number](std::function<void()> letter) {
    Post([this, number, letter = std::move(letter)] {
      if (number == link_number_) letter();
    });
  };
  worker::TransportCallbacks callbacks;
  callbacks.on_message = [this, post](proto::CoordinatorMessage message) {
    if (message.has_epoch_start()) {
      epoch_key_ = options_.coordinator->EpochKey(options_.node);
    }
    post(
        [this, message = std::move(message)] { core_.OnCoordinator(message); });
  };
  callbacks.on_acknowledged = [this, post](uint64_t sequence) {
    post([this, sequence] {
      if (presence_sequence_ == 0 || sequence < presence_sequence_) return;
      presence_sequence_ = 0;
      core_.OnPresenceAcknowledged();
    });
  };
  callbacks.on_reconnected = [] {};
  callbacks.on_lost = [this, post](absl::Status status) {
    post([this, status = std::move(status)] {
      stage_->Trace("node ", options_.node,
                    ": coordinator lost: ", status.message());
      transport_.reset();
      core_.OnLinkLost(status);
    });
  };
  proto::ExecutorHello hello;
  hello.set_protocol_version(kProtocolVersion);
  hello.set_job(options_.core.job);
  hello.set_token("token");
  hello.set_node(options_.core.node);
  hello.set_host(options_.core.host);
  transport_ = std::make_shared<SimulatedTransport>(
      stage_, options_.coordinator, options_.node, std::move(hello),
      options_.core.resume_timeout_ms * kMillisecond, std::move(callbacks));
  transport_->Start();
}

void Executor::Do(worker::SendToCoordinator& a) {
  if (transport_ == nullptr) return;
  const bool presence = a.message.has_presence();
  const uint64_t sequence = transport_->Send(std::move(a.message));
  if (presence) presence_sequence_ = sequence;
}

// --- Epoch -------------------------------------------------------------------

void Executor::Do(worker::PrepareBackend& a) {
  DropNetwork();
  const auto nodes = static_cast<uint32_t>(a.node_names.size());
  ++network_number_;
  network_ = std::make_unique<Network>();
  network_->backend = std::make_unique<SimulatedBackend>(
      options_.fabric, a.node_names[a.node_index]);
  network_->turn =
      std::make_unique<Turn>(&stage_->scheduler, [this] { NetworkTurn(); });
  const auto addresses = network_->backend->Prepare(a.node_index, nodes);
  stage_->scheduler.After(stage_->SoonDelay(), network_->life,
                          [this, addresses] {
                            Post([this, addresses, n = network_number_] {
                              if (n != network_number_) return;
                              core_.OnBackendPrepared(addresses);
                            });
                          });
}

void Executor::Do(worker::ConnectBackend& a) {
  if (network_ == nullptr) return;
  network_->backend->StartConnecting(a.addresses,
                                     [this](const absl::Status& s) {
                                       Post([this, s, n = network_number_] {
                                         if (n == network_number_)
                                           core_.OnBackendConnected(s);
                                       });
                                     });
}

void Executor::Do(worker::CreateBoard& a) {
  std::unique_ptr<Board> board;
  // What the core does not know of: the smallest pools that try all ways.
  a.config.small_bytes = 512;
  a.config.pool_buffers = 3;
  const absl::Status s = ToAbsl(Board::Create(a.config, &board));
  if (!s.ok()) stage_->Found("no board: ", s.message());
  if (s.ok()) {
    keeper_ = std::make_unique<worker::BoardKeeper>(std::move(board));
    for (uint32_t i = 0; i < a.pids.size(); ++i) {
      keeper_->MarkPresent(i, a.pids[i]);
    }
    if (network_ != nullptr) {
      worker::NetworkRunner::Callbacks callbacks;
      callbacks.on_free = [this](uint32_t record) {
        Post([this, record, n = network_number_] {
          if (n == network_number_) core_.OnRunFree(record);
        });
      };
      network_->runner = std::make_unique<worker::NetworkRunner>(
          &keeper_->board(), network_->backend.get(), std::move(callbacks));
      network_->turn->Ask(stage_->SoonDelay(), network_->life);
    }
    ++stage_->counts.epochs;
    stage_->Trace("node ", options_.node, ": epoch ", EpochKey());
  }
  if (!core_.OnBoardCreated(s)) return;
  for (uint32_t i = 0; i < a.clients.size(); ++i) {
    auto welcome = session::Make<session::Welcome>();
    welcome.epoch = a.config.epoch;
    welcome.local_rank = i;
    SendToClient(a.clients[i], &welcome, sizeof(welcome),
                 Fd(dup(keeper_->board().fd())));
  }
}

void Executor::Do(worker::AllotSlot& a) {
  // Memory is not what a seed makes short.
  if (keeper_ != nullptr) (void)keeper_->Allot(a);
}

void Executor::Do(worker::WantSlot& a) {
  if (keeper_ == nullptr) return;
  stage_->Trace("node ", options_.node, ": wants slot ", a.slot, ":",
                a.generation);
  keeper_->board().Want(a.slot, a.generation, a.signature);
}

void Executor::Do(worker::IssueRun& a) {
  if (keeper_ == nullptr || network_ == nullptr || keeper_->board().aborted()) {
    return;
  }
  stage_->Trace("node ", options_.node, ": run ", Name(a.run.kind), " of ",
                a.run.operations.size(), " operations, ", a.run.bytes,
                " bytes, record ", a.run.record, ":", a.run.generation);
  if (stage_->Spoils(Sabotage::kSkipRun, 64)) return;
  keeper_->WritePlan(a.run);
  network_->runner->Add(a.run);
  keeper_->Issue(a.run);
}

void Executor::Do(worker::FailSlot& a) {
  if (keeper_ == nullptr) return;
  stage_->Trace("node ", options_.node, ": fails slot ", a.slot, ":",
                a.generation, " ", a.text);
  keeper_->board().Fail(a.slot, a.generation, a.code, a.text);
}

void Executor::Do(worker::MarkLeft& a) {
  if (keeper_ == nullptr) return;
  stage_->Trace("node ", options_.node, ": left: ", a.text);
  keeper_->MarkLeft(a);
}

void Executor::Do(worker::MarkGone& a) {
  if (keeper_ != nullptr) {
    keeper_->MarkGone(static_cast<uint32_t>(a.local_rank));
  }
}

void Executor::Do(worker::AbortBoard& a) {
  stage_->Trace("node ", options_.node, ": aborts: ", a.text);
  if (keeper_ != nullptr) keeper_->board().Abort(a.code, a.text);
  if (network_ != nullptr) {
    network_->over = true;
    network_->backend->Abort();
  }
}

void Executor::Do(worker::WantChange& a) {
  if (keeper_ == nullptr) return;
  keeper_->board().header().change_wanted.store(a.ranks);
}

void Executor::Do(worker::DropEpoch&) {
  stage_->Trace("node ", options_.node, ": epoch over");
  ++network_number_;
  DropNetwork();
  keeper_.reset();
}

void Executor::Do(worker::ReportIdle&) { idle_ = true; }

// Puts two runs into the other order.
void Executor::Spoil(std::vector<worker::Action>* actions) {
  for (size_t i = 1; i < actions->size(); ++i) {
    worker::Action& first = (*actions)[i - 1];
    worker::Action& second = (*actions)[i];
    if (std::holds_alternative<worker::IssueRun>(first) &&
        std::holds_alternative<worker::IssueRun>(second) &&
        stage_->Spoils(Sabotage::kSwapRuns, 4)) {
      std::swap(first, second);
    }
  }
}

void Executor::DoActions() {
  for (auto actions = core_.TakeActions(); !actions.empty();
       actions = core_.TakeActions()) {
    Spoil(&actions);
    for (worker::Action& action : actions) {
      std::visit([this](auto& a) { Do(a); }, action);
    }
  }
}

// --- The network thread ------------------------------------------------------

void Executor::DropNetwork() {
  if (network_ == nullptr) return;
  network_->life.reset();
  network_->backend->Abort();
  // The backend calls the runner; the runner does not need it any more.
  network_->backend.reset();
  network_.reset();
}

void Executor::NetworkTurn() {
  Network& n = *network_;
  const bool slept = std::exchange(n.asleep, false);
  if (n.over || n.runner == nullptr || keeper_->board().aborted()) return;
  BoardHeader& h = keeper_->board().header();
  const bool by_itself = slept && h.network_wake.load() == n.seen;
  h.network_sleeping.store(0);
  const uint32_t seen = h.network_wake.load();
  const absl::StatusOr<bool> moved = n.runner->Step();
  if (!moved.ok()) {
    n.over = true;
    stage_->Trace("node ", options_.node,
                  ": network failed: ", moved.status().message());
    Post([this, s = moved.status(), number = network_number_] {
      if (number == network_number_) core_.OnNetworkFailed(s);
    });
    return;
  }
  if (*moved) {
    if (by_itself && !stage_->SomebodyOwesAWake()) {
      stage_->Found("node ", options_.node,
                    ": nobody has woken the network thread");
    }
    n.turn->Ask(stage_->SoonDelay(), n.life);
    return;
  }
  // The second look that the real one takes comes with LookAtWakeWords().
  h.network_sleeping.store(1);
  n.asleep = true;
  n.seen = seen;
  n.turn->Ask(kNetworkSleep, n.life);
  LookAtWakeWords();
}

void Executor::LookAtWakeWords() {
  if (network_ == nullptr || !network_->asleep || keeper_ == nullptr) return;
  const BoardHeader& h = keeper_->board().header();
  if (h.network_wake.load() == network_->seen) return;
  network_->turn->Ask(stage_->SoonDelay(), network_->life);
}

bool Executor::FailBackend() {
  if (network_ == nullptr || !network_->backend->connected()) return false;
  network_->backend->Fail(
      absl::UnavailableError("connection reset by the peer"), true);
  return true;
}

}  // namespace maypole::simulation
