#include "worker/executor/executor_logic.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/core/limits.h"

namespace maypole::worker {
namespace {

constexpr int64_t kHeldTicketMs = 5;
// For how long an epoch may drain after SIGTERM. The agent waits longer.
constexpr int64_t kStopDrainMs = 500;
// At most this many messages of a client are read in a turn, so that a client
// that floods the executor does not starve the others.
constexpr int kMessagesPerTurn = 32;

}  // namespace

ExecutorLogic::ExecutorLogic(const ExecutorCoreOptions& options,
                             ExecutorSystem* system, ExecutorObserver* observer)
    : options_(options),
      system_(system),
      observer_(observer),
      core_(options),
      states_(options.state_bytes),
      timeline_(this) {
  core_.OnTime(NowMs());
}

ExecutorLogic::~ExecutorLogic() {
  timeline_.OnEpochOver();
  timeline_file_.reset();
  transport_.reset();
  network_.reset();
  gpus_.reset();
}

// --- Turns -------------------------------------------------------------------

int64_t ExecutorLogic::PrepareSleep() {
  if (keeper_ != nullptr) {
    // Announce the sleep before looking: ranks that arrive later then wake the
    // loop.
    keeper_->SetSleeping(true);
    TakeReadySlots();
    DoActions();
    LookAround();
  }
  tickets_held_ = keeper_ != nullptr && keeper_->PlaceHeldTickets();
  return SleepMs();
}

int64_t ExecutorLogic::SleepMs() const {
  const int64_t ms = PauseMs();
  return core_.WaitMs() < 0 ? ms : std::min(ms, core_.WaitMs());
}

int64_t ExecutorLogic::PauseMs() const {
  if (done_at_ms_ != INT64_MAX) return kLeftScanMs;
  if (keeper_ == nullptr) return kBoardScanMs;
  if (tickets_held_ || core_.waits_for_records()) return kHeldTicketMs;
  if (core_.waits_for_slots()) return kRecallPauseMs;
  if (core_.waits_to_send_results()) return kResultsPauseMs;
  if (timeline_.SleepMs() >= 0) return timeline_.SleepMs();
  const bool hurry = keeper_->somebody_left() || keeper_->AllSayBlocked();
  return hurry ? std::min(kLeftScanMs, kBlockedScanMs) : kBoardScanMs;
}

void ExecutorLogic::TakeReadySlots() {
  std::vector<ReadySlot> all = keeper_->TakeReadySlots();
  Intercept(&all);
  for (const ReadySlot& ready : all) {
    observer_->OnReady(ready);
    if (timeline_.recording())
      timeline_.OnReady(ready.slot, ready.generation, system_->NowNs());
    core_.OnReadySlot(ready);
  }
}

void ExecutorLogic::LookAround() {
  if (keeper_ == nullptr) return;
  const int64_t now = NowMs();
  const int64_t pause =
      keeper_->AllSayBlocked() ? kBlockedScanMs : kBoardScanMs;
  if (now - looked_ms_ < pause && !core_.wants_snapshot()) return;
  looked_ms_ = now;
  core_.OnTime(now);
  const BoardSnapshot snapshot = keeper_->TakeSnapshot(core_.suspects());
  observer_->OnScan(snapshot);
  core_.OnSnapshot(snapshot);
  DoActions();
}

void ExecutorLogic::Wake(std::span<const ExecutorEvent> events) {
  if (keeper_ != nullptr) keeper_->SetSleeping(false);
  Tick();
  bool hand_over = false;
  for (const ExecutorEvent& event : events) {
    hand_over = hand_over || event.kind == ExecutorEvent::Kind::kHandOver;
    if (event.kind != ExecutorEvent::Kind::kHandOver) Handle(event);
  }
  if (hand_over) TakeClients();
  const bool ends = !supervised_ && clients_.empty() && !core_.drains();
  if (ends || NowMs() >= done_at_ms_) done_ = true;
}

void ExecutorLogic::Tick() {
  timeline_.OnTime(system_->NowNs());
  core_.OnTime(NowMs());
  DoActions();
  if (keeper_ == nullptr) return;
  if (keeper_->somebody_left()) keeper_->FailWaiting();
  for (const uint32_t record : keeper_->TakeRunsOfRanks()) {
    core_.OnRunFree(record);
  }
  DoActions();
  observer_->OnTick(network_.get());
}

void ExecutorLogic::Handle(const ExecutorEvent& event) {
  switch (event.kind) {
    case ExecutorEvent::Kind::kHandOver:
      break;  // Wake() handles these last
    case ExecutorEvent::Kind::kPosted:
      for (const auto& function : system_->TakePosted()) function();
      break;
    case ExecutorEvent::Kind::kBoardWake:
      if (wake_ != nullptr) wake_->Drain();
      break;
    case ExecutorEvent::Kind::kPeers:
      TakePeerMessages();
      break;
    case ExecutorEvent::Kind::kClient:
      ReadClient(event.client, kMessagesPerTurn);
      break;
    case ExecutorEvent::Kind::kProcessEnded:
      OnProcessEnded(event.client);
      break;
  }
  DoActions();
}

std::function<void(std::function<void()>)> ExecutorLogic::PosterFor(
    const uint64_t* number) {
  return [this, number, now = *number](std::function<void()> function) {
    system_->Post([number, now, function = std::move(function)] {
      if (*number == now) function();
    });
  };
}

void ExecutorLogic::DoActions() {
  for (auto actions = core_.TakeActions(); !actions.empty();
       actions = core_.TakeActions()) {
    Intercept(&actions);
    for (Action& action : actions) {
      observer_->OnAction(action);
      std::visit([this](auto& a) { Do(a); }, action);
    }
  }
}

// --- The supervisor ----------------------------------------------------------

// Takes one client in a turn; the event is reported again for the others.
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
      ++received_;  // the supervisor counts it, too
      observer_->OnClientRefused(
          client.hello.rank,
          "its connection could not be passed to the executor, which may be "
          "out of file descriptors (ulimit -n)");
      return;
    case ExecutorSystem::HandOver::kClient:
      ++received_;
      idle_reported_ = false;
      Admit(next_client_++, client, std::move(link));
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
