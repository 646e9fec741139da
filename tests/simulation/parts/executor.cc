#include "tests/simulation/parts/executor.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "tests/simulation/timeline/timeline_file.h"

namespace maypole::simulation {

using worker::ExecutorEvent;

Executor::Executor(Options options)
    : options_(std::move(options)),
      stage_(options_.stage),
      loop_(&stage_->scheduler, [this] { LoopTurn(); }),
      logic_(std::make_unique<Logic>(this)) {}

Executor::~Executor() = default;

void Executor::Start() { WakeLoop(); }

void Executor::Kill() {
  if (const auto transport = transport_.lock()) transport->Die();
  End();
}

void Executor::End() {
  life_.reset();
  logic_.reset();
  for (Arriving& a : arriving_) a.connection->to_client.Close();
  arriving_.clear();
}

// --- The loop ----------------------------------------------------------------

void Executor::WakeLoop() {
  if (life_ != nullptr) loop_.Ask(stage_->SoonDelay(), life_);
}

std::vector<ExecutorEvent> Executor::Ready() const {
  std::vector<ExecutorEvent> events;
  for (const auto& [number, source] : sources_) {
    if (source->ready()) events.push_back(source->event());
  }
  if (!posted_.empty()) events.push_back({ExecutorEvent::Kind::kPosted});
  if (network_ != nullptr && network_->has_messages()) {
    events.push_back({ExecutorEvent::Kind::kPeers});
  }
  if (HasControl()) {
    events.push_back({ExecutorEvent::Kind::kHandOver});
  }
  return events;
}

void Executor::LoopTurn() {
  std::vector<ExecutorEvent> events = Ready();
  stage_->random.Shuffle(&events);
  std::vector<std::pair<uint64_t, uint64_t>> told;
  for (const auto& [number, source] : sources_) {
    if (source->ready()) told.emplace_back(number, source->attended());
  }
  woken_ = std::any_of(events.begin(), events.end(), [](const auto& event) {
    return event.kind == ExecutorEvent::Kind::kBoardWake;
  });
  had_board_ = board() != nullptr;
  control_read_ = false;
  const bool control = HasControl();
  logic_->Wake(events);
  CheckAttended(told);
  if (control && !control_read_) {
    stage_->Found("node ", options_.node,
                  ": the supervisor's message is not read");
  }
  if (logic_->done()) return;
  loop_.Ask(logic_->PrepareSleep() * kMillisecond, life_);
  if (!Ready().empty()) WakeLoop();
}

// A ready source that is not handled would be reported again at once, for ever.
void Executor::CheckAttended(
    const std::vector<std::pair<uint64_t, uint64_t>>& told) {
  for (const auto& [number, attended] : told) {
    const auto it = sources_.find(number);
    if (it == sources_.end() || it->second->attended() != attended) continue;
    const ExecutorEvent event = it->second->event();
    stage_->Found("node ", options_.node, ": event ",
                  static_cast<int>(event.kind), " of client ", event.client,
                  " is reported, but not handled");
  }
}

void Executor::Spoil(std::vector<worker::Action>* actions) {
  stage_->counts.slots_freed += static_cast<uint64_t>(
      std::count_if(actions->begin(), actions->end(), [](const auto& action) {
        return std::holds_alternative<worker::FreeSlot>(action);
      }));
  stage_->counts.rooms_too_small += static_cast<uint64_t>(
      std::count_if(actions->begin(), actions->end(), [](const auto& action) {
        return std::holds_alternative<worker::RunOnHost>(action);
      }));
  for (const worker::Action& action : *actions) {
    stage_->counts.small_runs +=
        std::holds_alternative<worker::FinishSmall>(action) ? 1 : 0;
    const auto* inputs = std::get_if<worker::SendToPeers>(&action);
    stage_->counts.inputs_sent +=
        inputs != nullptr && inputs->message.has_inputs_of() ? 1 : 0;
    const auto* sent = std::get_if<worker::SendToCoordinator>(&action);
    if (sent == nullptr || !sent->message.has_schedule_ended()) continue;
    ++stage_->counts.schedules_over;
    stage_->counts.scheduled_runs += sent->message.schedule_ended().runs();
  }
  for (size_t i = 1; i < actions->size(); ++i) {
    worker::Action& first = (*actions)[i - 1];
    worker::Action& second = (*actions)[i];
    if (std::holds_alternative<worker::IssueRun>(first) &&
        std::holds_alternative<worker::IssueRun>(second) &&
        stage_->Spoils(Sabotage::kSwapRuns, 4)) {
      std::swap(first, second);
    }
  }
  std::erase_if(*actions, [&](const worker::Action& action) {
    return (std::holds_alternative<worker::IssueRun>(action) &&
            stage_->Spoils(Sabotage::kSkipRun, 64)) ||
           (std::holds_alternative<worker::DropEpoch>(action) &&
            stage_->Spoils(Sabotage::kKeepEpoch, 4)) ||
           (std::holds_alternative<worker::WantChange>(action) &&
            stage_->Spoils(Sabotage::kNoWish, 1));
  });
}

void Executor::Judge(std::vector<worker::ReadySlot>* all) {
  for (worker::ReadySlot& ready : *all) {
    if (!woken_ && had_board_ && !stage_->SomebodyOwesAWake()) {
      stage_->Found("node ", options_.node,
                    ": an operation is ready, and no rank has woken the "
                    "executor");
    }
    if (stage_->Spoils(Sabotage::kNoMismatch, 2)) {
      for (Signature& s : ready.signatures) s = ready.signatures.front();
    }
  }
}

void Executor::Post(std::function<void()> function) {
  posted_.push_back(std::move(function));
  WakeLoop();
}

std::vector<std::function<void()>> Executor::TakePosted() {
  return std::exchange(posted_, {});
}

// --- The supervisor ----------------------------------------------------------

void Executor::TakeClient(std::shared_ptr<Connection> connection,
                          const session::Hello& hello) {
  arriving_.push_back({std::move(connection), hello});
  ++handed_over_;
  WakeLoop();
}

Executor::HandOver Executor::TakeClient(
    worker::ClientId id, worker::ArrivingClient* client,
    std::unique_ptr<worker::ClientLink>* link) {
  control_read_ = true;
  if (arriving_.empty()) {
    const bool gone = std::exchange(supervisor_gone_, false);
    return supervisor_agrees_ || gone ? HandOver::kSupervisorGone
                                      : HandOver::kNone;
  }
  const Arriving a = std::move(arriving_.front());
  arriving_.pop_front();
  client->hello = a.hello;
  client->pid = a.hello.pid;
  const uint64_t number = ++last_source_;
  auto made = std::make_unique<SimulatedLink>(
      stage_, id, a.connection, [this] { WakeLoop(); },
      [this, number] { sources_.erase(number); },
      [this](worker::ClientId client, std::shared_ptr<ProcessHandle> process)
          -> std::unique_ptr<worker::ProcessWatch> {
        const uint64_t watch = ++last_source_;
        auto watches = std::make_unique<SimulatedProcessWatch>(
            client, std::move(process), [this] { WakeLoop(); },
            [this, watch] { sources_.erase(watch); });
        sources_[watch] = watches.get();
        return watches;
      });
  sources_[number] = made.get();
  *link = std::move(made);
  return HandOver::kClient;
}

void Executor::LoseSupervisor() {
  supervisor_gone_ = true;
  WakeLoop();
}

void Executor::Stop() {
  logic_->Stop();
  WakeLoop();
}

void Executor::ReportIdle(uint64_t received) {
  // Otherwise a client is on its way.
  if (received != handed_over_) return;
  supervisor_agrees_ = true;
  WakeLoop();
}

// --- Objects that the logic creates ------------------------------------------

std::unique_ptr<worker::Transport> Executor::OpenTransport(
    worker::TransportCallbacks callbacks) {
  callbacks.on_message = [this, next = std::move(callbacks.on_message)](
                             proto::CoordinatorMessage message) {
    if (message.has_epoch_start()) {
      epoch_key_ = options_.coordinator->EpochKey(options_.node);
      epoch_keys_[message.epoch_start().epoch()] = epoch_key_;
    }
    next(std::move(message));
  };
  proto::ExecutorHello hello;
  // Every second node speaks the next version, too, in the middle of an
  // upgrade.
  hello.set_protocol_version(kProtocolVersions.oldest);
  hello.set_newest_version(kProtocolVersions.newest + options_.node % 2);
  hello.set_job(options_.core.job);
  hello.set_token("token");
  hello.set_node(options_.core.node);
  hello.set_host(options_.core.host);
  auto transport = std::make_shared<SimulatedTransport>(
      stage_, options_.coordinator, options_.node, std::move(hello),
      options_.core.resume_timeout_ms * kMillisecond, std::move(callbacks));
  transport->Start();
  transport_ = transport;
  return std::make_unique<TransportHandle>(std::move(transport));
}

std::unique_ptr<worker::EpochNetwork> Executor::MakeNetwork(
    const worker::PrepareBackend& epoch,
    worker::EpochNetwork::Callbacks callbacks) {
  auto network = std::make_unique<SimulatedNetwork>(
      options_.fabric, epoch.node_names[epoch.node_index], std::move(callbacks),
      [this] { network_ = nullptr; }, [this] { WakeLoop(); });
  network_ = network.get();
  return network;
}

Status Executor::CreateBoard(const BoardConfig& config, uint32_t version,
                             std::unique_ptr<Board>* board) {
  BoardConfig c = config;
  // The core does not set these: the smallest pools that exercise all paths.
  c.eager_bytes = 512;
  c.pool_buffers = 3;
  board_epoch_ = c.epoch;
  Status s = Board::Create(c, board, version);
  if (!s.ok()) stage_->Found("no board: ", s.message());
  return s;
}

std::unique_ptr<EpochGpus> Executor::MakeGpus(EpochGpus::Callbacks callbacks) {
  return std::make_unique<SimulatedGpus>(stage_, std::move(callbacks));
}

std::unique_ptr<worker::BoardWake> Executor::MakeBoardWake() {
  if (watches_board()) {
    stage_->Found("node ", options_.node,
                  " watches the eventfd of an epoch that is over");
  }
  ++boards_watched_;
  const uint64_t number = ++last_source_;
  auto wake = std::make_unique<SimulatedWake>(
      stage_, [this] { WakeLoop(); },
      [this, number] {
        sources_.erase(number);
        --boards_watched_;
      });
  wake->shared()->epoch_key = epoch_keys_[board_epoch_];
  sources_[number] = wake.get();
  return wake;
}

std::unique_ptr<worker::TimelineFile> Executor::MakeTimelineFile(
    int, const std::string& name, std::function<void(Status)> failed) {
  return std::make_unique<SimulatedTimelineFile>(stage_, name,
                                                 std::move(failed));
}

void Executor::LookAtWakeWords() {
  if (network_ != nullptr) network_->LookAtWakeWord();
}

bool Executor::FailBackend() { return network_ != nullptr && network_->Fail(); }

// --- ExecutorObserver --------------------------------------------------------

void Executor::OnClientGone(int rank, const std::string& how) {
  if (how.find("session protocol") == std::string::npos) return;
  stage_->Found("rank ", rank, ": ", how);
}

void Executor::OnCoordinatorLost(const absl::Status& status) {
  stage_->Trace("node ", options_.node,
                ": coordinator lost: ", status.message());
}

void Executor::OnNetworkFailed(const absl::Status& status) {
  stage_->Trace("node ", options_.node, ": network failed: ", status.message());
}

void Executor::OnEpochStarted(const BoardConfig&, const Board&) {
  ++stage_->counts.epochs;
  stage_->Trace("node ", options_.node, ": epoch ", EpochKey());
}

void Executor::OnEpochAborted(const worker::AbortBoard& abort) {
  stage_->Trace("node ", options_.node, ": aborts: ", abort.text);
}

void Executor::OnEpochOver(const worker::EpochNetwork*) {
  stage_->Trace("node ", options_.node, ": epoch over");
}

void Executor::OnRankLeft(const worker::MarkLeft& left) {
  stage_->Trace("node ", options_.node, ": left: ", left.text);
}

void Executor::OnIssued(const worker::RunSpec& run) {
  stage_->Trace("node ", options_.node, ": run ", Name(run.kind), " of ",
                run.operations.size(), " operations, ", run.bytes,
                " bytes, record ", run.record, ":", run.generation);
}

void Executor::OnOperationFailed(const worker::FailSlot& fail,
                                 const std::string& name) {
  stage_->Trace("node ", options_.node, ": fails ", name, " (slot ", fail.slot,
                ":", fail.generation, ") ", fail.text);
}

}  // namespace maypole::simulation
