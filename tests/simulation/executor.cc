#include "tests/simulation/executor.h"

#include <algorithm>
#include <utility>
#include <variant>

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

// --- Actions -----------------------------------------------------------------

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
