#include "worker/executor/executor_logic.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "worker/core/limits.h"

namespace maypole::worker {
namespace {

constexpr int64_t kHeldTicketMs = 5;
// An epoch may drain this long after SIGTERM. The agent waits longer.
constexpr int64_t kStopDrainMs = 500;

// Parses the message and passes it to `take`.
template <typename Message, typename Take>
Status Parsed(const std::vector<char>& data, Take take) {
  Message message;
  const Status s = session::Parse(data.data(), data.size(), &message);
  if (s.ok()) take(message);
  return s;
}

}  // namespace

ExecutorLogic::ExecutorLogic(const ExecutorCoreOptions& options,
                             ExecutorSystem* system, ExecutorObserver* observer)
    : options_(options),
      system_(system),
      observer_(observer),
      core_(options),
      states_(options.state_bytes),
      clients_(options_, observer, this),
      timeline_(system, observer, &clients_,
                {.to_coordinator =
                     [this](proto::ExecutorMessage message) {
                       coordinator_.Send(std::move(message));
                     },
                 .reply =
                     [this](ClientId client, session::TimelineReply* reply) {
                       Send(client, reply);
                     },
                 .set_on_board =
                     [this](uint32_t word) {
                       if (epoch_.keeper() == nullptr) return;
                       epoch_.keeper()->board().SetTimeline(word);
                     }}),
      epoch_(system, observer, &core_, &timeline_.timeline(),
             [this] { DoActions(); }),
      coordinator_(system, observer, &core_, &timeline_.timeline(),
                   [this] { DoActions(); }) {
  core_.OnTime(NowMs());
}

ExecutorLogic::~ExecutorLogic() { timeline_.timeline().OnEpochOver(); }

// --- Turns -------------------------------------------------------------------

int64_t ExecutorLogic::PrepareSleep() {
  BoardKeeper* const keeper = epoch_.keeper();
  if (keeper != nullptr) {
    // Announce the sleep before looking: ranks that arrive later then wake the
    // loop.
    keeper->SetSleeping(true);
    TakeReadySlots();
    DoActions();
    LookAround();
  }
  tickets_held_ =
      epoch_.keeper() != nullptr && epoch_.keeper()->PlaceHeldTickets();
  return SleepMs();
}

int64_t ExecutorLogic::SleepMs() const {
  const int64_t ms = PauseMs();
  return core_.WaitMs() < 0 ? ms : std::min(ms, core_.WaitMs());
}

int64_t ExecutorLogic::PauseMs() const {
  if (done_at_ms_ != INT64_MAX) return kLeftScanMs;
  const BoardKeeper* const keeper = epoch_.keeper();
  if (keeper == nullptr) return kBoardScanMs;
  if (tickets_held_ || core_.waits_for_records()) return kHeldTicketMs;
  if (core_.waits_for_slots()) return kRecallPauseMs;
  if (core_.waits_to_send_results()) return kResultsPauseMs;
  if (const int64_t ms = timeline_.timeline().SleepMs(); ms >= 0) return ms;
  const bool hurry = keeper->somebody_left() || keeper->AllSayBlocked();
  return hurry ? std::min(kLeftScanMs, kBlockedScanMs) : kBoardScanMs;
}

void ExecutorLogic::TakeReadySlots() {
  std::vector<ReadySlot> all = epoch_.keeper()->TakeReadySlots();
  Intercept(&all);
  ExecutorTimeline& timeline = timeline_.timeline();
  for (const ReadySlot& ready : all) {
    observer_->OnReady(ready);
    if (timeline.recording()) {
      timeline.OnReady(ready.slot, ready.generation, system_->NowNs());
    }
    core_.OnReadySlot(ready);
  }
}

void ExecutorLogic::LookAround() {
  if (epoch_.keeper() == nullptr) return;
  const int64_t now = NowMs();
  const int64_t pause =
      epoch_.keeper()->AllSayBlocked() ? kBlockedScanMs : kBoardScanMs;
  if (now - looked_ms_ < pause && !core_.wants_snapshot()) return;
  looked_ms_ = now;
  core_.OnTime(now);
  const BoardSnapshot snapshot =
      epoch_.keeper()->TakeSnapshot(core_.suspects());
  observer_->OnScan(snapshot);
  core_.OnSnapshot(snapshot);
  DoActions();
}

void ExecutorLogic::Wake(std::span<const ExecutorEvent> events) {
  if (epoch_.keeper() != nullptr) epoch_.keeper()->SetSleeping(false);
  Tick();
  bool hand_over = false;
  for (const ExecutorEvent& event : events) {
    hand_over = hand_over || event.kind == ExecutorEvent::Kind::kHandOver;
    if (event.kind != ExecutorEvent::Kind::kHandOver) Handle(event);
  }
  if (hand_over) TakeClients();
  const bool stops = done_at_ms_ != INT64_MAX;
  const bool ends = !supervised_ && clients_.size() == 0 && !core_.drains() &&
                    !core_.owes_report() && (stops || !core_.keeps_job_known());
  if (ends || NowMs() >= done_at_ms_) done_ = true;
}

void ExecutorLogic::Tick() {
  timeline_.timeline().OnTime(system_->NowNs());
  core_.OnTime(NowMs());
  DoActions();
  BoardKeeper* const keeper = epoch_.keeper();
  if (keeper == nullptr) return;
  if (keeper->somebody_left()) keeper->FailWaiting();
  for (const uint32_t record : keeper->TakeRunsOfRanks()) {
    core_.OnRunFree(record);
  }
  DoActions();
  observer_->OnTick(epoch_.network());
}

void ExecutorLogic::Handle(const ExecutorEvent& event) {
  switch (event.kind) {
    case ExecutorEvent::Kind::kHandOver:
      break;  // Wake() handles these last
    case ExecutorEvent::Kind::kPosted:
      for (const auto& function : system_->TakePosted()) function();
      break;
    case ExecutorEvent::Kind::kBoardWake:
      if (epoch_.wake() != nullptr) epoch_.wake()->Drain();
      break;
    case ExecutorEvent::Kind::kPeers:
      epoch_.TakePeerMessages();
      break;
    case ExecutorEvent::Kind::kClient:
      clients_.OnReadable(event.client);
      break;
    case ExecutorEvent::Kind::kProcessEnded:
      clients_.OnProcessEnded(event.client);
      break;
  }
  DoActions();
}

void ExecutorLogic::DoActions() {
  for (auto actions = core_.TakeActions(); !actions.empty();
       actions = core_.TakeActions()) {
    Intercept(&actions);
    for (Action& action : actions) {
      observer_->OnAction(action);
      std::visit(
          [this](auto& a) {
            if constexpr (requires { epoch_.Do(a); }) {
              epoch_.Do(a);
            } else if constexpr (requires { coordinator_.Do(a); }) {
              coordinator_.Do(a);
            } else {
              Do(a);
            }
          },
          action);
    }
  }
}

// --- Clients -----------------------------------------------------------------

Status ExecutorLogic::OnMessage(ClientId id, const std::vector<char>& data) {
  switch (session::TypeOf(data.data())) {
    case session::Type::kGoodbye:
      return Parsed<session::Goodbye>(data, [&](const auto& m) {
        timeline_.timeline().OnClientGone(id);
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
          data, [&](const auto& m) { timeline_.timeline().OnRequest(id, m); });
    case session::Type::kTimelineFile:
      return Parsed<session::TimelineFile>(
          data, [&](const auto& m) { timeline_.OnFile(id, m); });
    case session::Type::kTimelineRecords:
      return Parsed<session::TimelineRecords>(
          data, [&](const auto& m) { timeline_.timeline().OnRecords(id, m); });
    default:
      return Parsed<session::SlotRequest>(
          data, [&](const auto& m) { core_.OnSlotRequest(id, m); });
  }
}

void ExecutorLogic::OnClientGone(ClientId id, const std::string& how) {
  timeline_.timeline().OnClientGone(id);
  core_.OnClientGone(id, how);
}

void ExecutorLogic::OnStateRequest(ClientId id,
                                   const session::StateRequest& request) {
  const Fd* found = nullptr;
  Status s;
  switch (static_cast<session::StateCall>(request.call)) {
    case session::StateCall::kKeep:
      s = states_.Keep(request.name, clients_.TakeDescriptor());
      break;
    case session::StateCall::kFind:
      found = states_.Find(request.name);
      if (found == nullptr) s = Status(Code::kNotFound, "no such state");
      break;
    case session::StateCall::kDrop:
      states_.Drop(request.name);
      break;
    default:
      s = Status(Code::kInvalidArgument, "unknown StateCall");
  }
  core_.OnStatesKept(!states_.empty());
  observer_->OnStateCall(clients_.RankOf(id), request, states_.bytes(), s);
  auto reply = session::Make<session::StateReply>();
  reply.number = request.number;
  reply.code = static_cast<uint32_t>(s.code());
  session::SetText(reply.text, s.message());
  clients_.SendState(id, &reply, found);
  epoch_.WakeRanks();
}

template <typename Message>
void ExecutorLogic::Send(ClientId id, Message* message) {
  clients_.Send(id, message, sizeof(*message));
  epoch_.WakeRanks();
}

void ExecutorLogic::Do(ReplyClient& a) {
  auto* slot = std::get_if<session::SlotReply>(&a.reply);
  const BoardKeeper* const keeper = epoch_.keeper();
  if (slot != nullptr && slot->code == 0 && keeper != nullptr &&
      !keeper->IsAllotted(slot->slot)) {
    // There was no memory for the slot; this has aborted the epoch.
    const Status why = keeper->board().AbortStatus();
    slot->code =
        static_cast<uint32_t>(why.ok() ? Code::kResourceExhausted : why.code());
    session::SetText(slot->text, why.ok() ? "no memory" : why.message());
  }
  std::visit([&](auto& reply) { Send(a.client, &reply); }, a.reply);
}

void ExecutorLogic::Do(CloseClient& a) {
  timeline_.timeline().OnClientGone(a.client);
  clients_.Close(a.client);
}

void ExecutorLogic::Do(KeepWatching& a) {
  if (clients_.KeepWatching(a.client)) return;
  core_.OnProcessEnded(a.client);  // the process cannot be watched
}

void ExecutorLogic::Do(RecallFrom& a) {
  clients_.Send(a.client, &a.message, sizeof(a.message));
  if (epoch_.keeper() == nullptr) return;
  epoch_.keeper()->board().TellOfRecall(a.local_rank);
}

// --- Epochs ------------------------------------------------------------------

void ExecutorLogic::Do(CreateBoard& a) {
  const absl::Status s = epoch_.MakeBoard(a);
  if (s.ok()) timeline_.OnEpochStarted(a, core_.NodeNames());
  if (!core_.OnBoardCreated(s)) return;
  for (uint32_t i = 0; i < a.clients.size(); ++i) {
    auto welcome = session::Make<session::Welcome>();
    welcome.header.version = a.version;
    welcome.epoch = a.config.epoch;
    welcome.local_rank = i;
    welcome.checksums = a.checksums;
    clients_.Welcome(a.clients[i], welcome, epoch_.keeper()->board(),
                     *epoch_.wake());
  }
}

void ExecutorLogic::Do(SendStats& a) {
  if (!coordinator_.open()) return;
  // Some counters are read from the board. The last regular scan is up to
  // kBoardScanMs old, which would falsify rates over a second.
  if (epoch_.keeper() != nullptr) {
    observer_->OnScan(epoch_.keeper()->TakeSnapshot(0));
  }
  proto::ExecutorMessage message;
  message.set_epoch(a.epoch);
  proto::NodeStats* const stats = message.mutable_node_stats();
  stats->set_time_ms(NowMs());
  observer_->FillStats(stats);
  coordinator_.Send(std::move(message));
}

void ExecutorLogic::Do(DropEpoch&) {
  observer_->OnEpochOver(epoch_.network());
  timeline_.timeline().OnEpochOver();
  epoch_.Drop();
}

// --- The supervisor ----------------------------------------------------------

// Takes one client in a turn; the event is reported again for further clients.
void ExecutorLogic::TakeClients() {
  ArrivingClient client;
  std::unique_ptr<ClientLink> link;
  switch (system_->TakeClient(next_client_, &client, &link)) {
    case ExecutorSystem::HandOver::kNone:
      return;
    case ExecutorSystem::HandOver::kSupervisorGone:
      observer_->OnSupervisorGone(idle_reported_);
      supervised_ = false;
      core_.OnSupervisorGone();
      return DoActions();
    case ExecutorSystem::HandOver::kLost:
      ++received_;  // the supervisor has counted it
      observer_->OnClientRefused(
          client.hello.rank,
          "its connection could not be passed to the executor, which may be "
          "out of file descriptors (ulimit -n)");
      return;
    case ExecutorSystem::HandOver::kClient:
      ++received_;
      idle_reported_ = false;
      if (clients_.Admit(next_client_, client, std::move(link))) {
        core_.OnClient(next_client_, client.hello, client.pid);
      }
      ++next_client_;
      DoActions();
  }
}

void ExecutorLogic::Do(ReportIdle&) {
  idle_reported_ = true;
  if (supervised_) system_->ReportIdle(received_);
}

void ExecutorLogic::Stop() {
  core_.OnStop(absl::StrCat("the executor of job '", options_.job, "' on node ",
                            options_.node, " (host ", options_.host,
                            ") was stopped (SIGTERM)"));
  DoActions();
  supervised_ = false;
  done_at_ms_ = NowMs() + kStopDrainMs;
  done_ = !core_.drains();
}

}  // namespace maypole::worker
