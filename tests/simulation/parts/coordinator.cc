#include "tests/simulation/parts/coordinator.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

namespace maypole::simulation {
namespace {

// Keepalive: after this time even an end that sends nothing notices the break.
constexpr int64_t kSurelyNoticed = 4 * kSecond;
constexpr char kJob[] = "job";

}  // namespace

Coordinator::Coordinator(Stage* stage, const coordinator::Config& config,
                         int nodes)
    : stage_(stage),
      config_(config),
      cut_(static_cast<size_t>(nodes), false),
      timer_(&stage->scheduler, [this] { OnTimer(); }),
      epoch_keys_(static_cast<size_t>(nodes)) {
  Restart();
}

// --- Streams -----------------------------------------------------------------

bool Coordinator::Through(const Stream& stream) const {
  return !stream.broken && !cut_[static_cast<size_t>(stream.node)];
}

std::shared_ptr<Stream> Coordinator::Connect(int node,
                                             std::weak_ptr<StreamUser> user) {
  auto stream = std::make_shared<Stream>();
  stream->id = ++last_stream_;
  stream->node = node;
  stream->user = std::move(user);
  stream->last_up = stream->last_down = stage_->scheduler.now();
  streams_[stream->id] = stream;
  if (core_ == nullptr || !Through(*stream)) {
    stream->broken = true;
    streams_.erase(stream->id);
    EndForUser(stream, stage_->MessageDelay(),
               absl::UnavailableError("failed to connect"));
  }
  return stream;
}

void Coordinator::Write(const std::shared_ptr<Stream>& stream,
                        const proto::ExecutorMessage& message) {
  if (!Through(*stream) || !stream->user_open) return;
  stream->last_up = std::max(stream->last_up,
                             stage_->scheduler.now() + stage_->MessageDelay());
  stage_->scheduler.At(stream->last_up, process_, [this, stream, message] {
    if (!Through(*stream)) return;
    if (!stream->coordinator_open) {
      if (!message.has_hello()) return;  // the coordinator has closed it
      stream->coordinator_open = true;
    }
    core_->Received(Now(), stream->id, message, carry_);
    AskForTime();
  });
}

void Coordinator::Finish(const std::shared_ptr<Stream>& stream) {
  if (!Through(*stream)) return Drop(stream);
  stream->last_up = std::max(stream->last_up,
                             stage_->scheduler.now() + stage_->MessageDelay());
  stream->user_open = false;
  stage_->scheduler.At(stream->last_up, process_, [this, stream] {
    if (!Through(*stream) || !stream->coordinator_open) return;
    stream->coordinator_open = false;
    streams_.erase(stream->id);
    core_->Ended(Now(), stream->id, coordinator::StreamEnd::kFinished, carry_);
    AskForTime();
  });
}

void Coordinator::Drop(const std::shared_ptr<Stream>& stream) {
  stream->user_open = false;
  Break(stream, stage_->MessageDelay(), 0);
}

void Coordinator::Break(const std::shared_ptr<Stream>& stream,
                        int64_t coordinator_notices, int64_t user_notices) {
  stream->broken = true;
  stage_->scheduler.After(coordinator_notices, process_, [this, stream] {
    streams_.erase(stream->id);
    if (!stream->coordinator_open) return;
    stream->coordinator_open = false;
    core_->Ended(Now(), stream->id, coordinator::StreamEnd::kBroken, carry_);
    AskForTime();
  });
  EndForUser(stream, user_notices,
             absl::UnavailableError("connection reset by peer"));
}

void Coordinator::EndForUser(const std::shared_ptr<Stream>& stream,
                             int64_t delay, const absl::Status& status) {
  const int64_t time =
      std::max(stream->last_down, stage_->scheduler.now() + delay);
  stage_->scheduler.At(time, stage_->Forever(), [stream, status] {
    if (!stream->user_open) return;
    stream->user_open = false;
    if (const auto user = stream->user.lock()) user->OnStreamEnded(status);
  });
}

// --- Faults ------------------------------------------------------------------

void Coordinator::Kill() {
  core_.reset();
  process_.reset();
  timer_.Forget();
  for (auto& [id, stream] : std::exchange(streams_, {})) {
    stream->broken = true;
    EndForUser(stream, stage_->MessageDelay(),
               absl::UnavailableError("Socket closed"));
  }
}

void Coordinator::Restart() {
  incarnation_ = absl::StrCat("incarnation", ++incarnations_);
  epochs_before_.merge(epochs_);
  epochs_.clear();
  core_ = std::make_unique<coordinator::CoordinatorCore>(config_, incarnation_);
  process_ = std::make_shared<int>();
}

void Coordinator::Cut(int node) {
  cut_[static_cast<size_t>(node)] = true;
  Random& random = stage_->random;
  std::vector<std::shared_ptr<Stream>> all;
  for (const auto& [id, stream] : streams_) {
    if (stream->node == node && !stream->broken) all.push_back(stream);
  }
  for (const auto& stream : all) {
    Break(stream, random.Magnitude(kMillisecond, kSurelyNoticed),
          random.Magnitude(kMillisecond, kSurelyNoticed));
  }
}

void Coordinator::Heal(int node) { cut_[static_cast<size_t>(node)] = false; }

// --- Actions of the core -----------------------------------------------------

void Coordinator::Carry(coordinator::Actions* actions) {
  for (coordinator::Action& action : *actions) {
    if (auto* send = std::get_if<coordinator::Send>(&action)) {
      Send(*send);
    } else if (auto* close = std::get_if<coordinator::Close>(&action)) {
      Close(*close);
    } else if (auto* log = std::get_if<coordinator::Log>(&action)) {
      stage_->Trace("coordinator: ", log->line);
      Note(log->line);
    } else if (auto* compared =
                   std::get_if<coordinator::ResultsCompared>(&action)) {
      stage_->counts.results_compared += compared->equal;
      stage_->counts.results_unchecked += compared->unchecked;
    } else if (std::get_if<coordinator::Reconnected>(&action) != nullptr) {
      ++stage_->counts.reconnects;
    }
  }
}

void Coordinator::Note(const std::string& line) {
  const bool is_end = line.starts_with("event=epoch_end");
  if (line.starts_with("event=job_forgotten")) {
    epochs_.clear();
    ++forgotten_;
  }
  if (line.starts_with("event=session_taken_over")) {
    epochs_.merge(epochs_before_);
  }
  if (line.starts_with("event=job_recovered") &&
      line.find("running=1") != std::string::npos) {
    ++stage_->counts.continued;
  }
  if (line.starts_with("event=results_differ")) {
    stage_->Found("no bit has been flipped, but ", line);
  }
  if (line.starts_with("event=late_ranks ")) ++stage_->counts.late_reports;
  if (is_end && line.find("deadlock: ") != std::string::npos) {
    ++stage_->counts.deadlocks;
  }
  if (is_end && line.find("has not moved for") != std::string::npos) {
    ++stage_->counts.frozen_expelled;
  }
}

void Coordinator::Send(const coordinator::Send& send) {
  const auto it = streams_.find(send.stream);
  if (it == streams_.end()) return;
  const std::shared_ptr<Stream>& stream = it->second;
  const proto::CoordinatorMessage message = send.message.ToMessage();
  if (message.has_epoch_start()) {
    proto::EpochStart start = message.epoch_start();
    start.clear_node_index();
    start.clear_clients();
    std::string& key = epochs_[start.SerializeAsString()];
    if (key.empty()) key = absl::StrCat(++last_epoch_, ".", start.epoch());
    epoch_keys_[static_cast<size_t>(stream->node)] = key;
  }
  if (message.sequence() > 0 && stage_->Spoils(Sabotage::kDropMessage, 16)) {
    return;
  }
  if (!Through(*stream)) return;
  stream->last_down = std::max(
      stream->last_down, stage_->scheduler.now() + stage_->MessageDelay());
  stage_->scheduler.At(stream->last_down, stage_->Forever(),
                       [this, stream = stream, message] {
                         if (!Through(*stream) || !stream->user_open) return;
                         if (const auto user = stream->user.lock()) {
                           user->OnStreamMessage(message);
                         }
                       });
}

void Coordinator::Close(const coordinator::Close& close) {
  const auto it = streams_.find(close.stream);
  if (it == streams_.end()) return;
  const std::shared_ptr<Stream> stream = it->second;
  streams_.erase(it);
  stream->coordinator_open = false;
  EndForUser(stream, stage_->MessageDelay(), close.status);
}

void Coordinator::AskForTime() {
  const std::optional<coordinator::Time> deadline = core_->Deadline();
  if (!deadline) return;
  timer_.Ask(deadline->count() - stage_->scheduler.now() +
                 stage_->random.Between(0, kMillisecond),
             process_);
}

void Coordinator::OnTimer() {
  const std::optional<coordinator::Time> due = core_->Deadline();
  if (due && *due <= Now()) core_->Passed(Now(), carry_);
  AskForTime();
}

// --- The operator ------------------------------------------------------------

absl::StatusOr<proto::TimelineStatus> Coordinator::RecordTimeline(bool stop) {
  proto::RecordTimelineRequest request;
  request.set_job(kJob);
  request.set_stop(stop);
  request.set_who("operator@sim");
  const auto reply = core_->RecordTimeline(Now(), request, carry_);
  AskForTime();
  if (!reply.ok()) return reply.status();
  return reply->timeline();
}

std::optional<proto::JobStatus> Coordinator::JobNow() const {
  proto::StatusRequest request;
  request.set_job(kJob);
  const auto status = core_->Status(Now(), request);
  if (!status.ok() || status->jobs().empty()) return std::nullopt;
  return status->jobs(0);
}

std::string Coordinator::StatusText() const {
  if (core_ == nullptr) return "the coordinator is down";
  const auto status = core_->Status(Now(), proto::StatusRequest());
  return status.ok() ? status->ShortDebugString() : status.status().ToString();
}

}  // namespace maypole::simulation
