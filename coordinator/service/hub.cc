#include "coordinator/service/hub.h"

#include <chrono>
#include <utility>
#include <variant>
#include <vector>

#include "coordinator/service/session_stream.h"
#include "spdlog/spdlog.h"

namespace maypole::coordinator {
namespace {

Time Now() { return std::chrono::steady_clock::now().time_since_epoch(); }

std::chrono::steady_clock::time_point ToClock(Time time) {
  return std::chrono::steady_clock::time_point(
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(time));
}

void Write(const Log& log) {
  switch (log.level) {
    case Level::kInfo:
      return spdlog::info("{}", log.line);
    case Level::kWarning:
      return spdlog::warn("{}", log.line);
    case Level::kError:
      return spdlog::error("{}", log.line);
  }
}

}  // namespace

Hub::Hub(const Config& config, std::string incarnation, Metrics* metrics,
         const Leadership* leadership)
    : metrics_(metrics),
      leadership_(leadership),
      started_(Now()),
      core_(config, std::move(incarnation)),
      timer_([this] { RunTimer(); }) {}

Hub::~Hub() {
  {
    std::lock_guard lock(timer_mutex_);
    timer_ends_ = true;
    deadline_changed_.notify_all();
  }
  timer_.join();
}

bool Hub::Leads() const {
  return leadership_ == nullptr || leadership_->Leads();
}

absl::Status Hub::CheckLeads() const {
  return Leads() ? absl::OkStatus() : leadership_->NotLeader();
}

absl::StatusOr<StreamId> Hub::Add(std::shared_ptr<SessionStream> stream) {
  std::lock_guard lock(streams_mutex_);
  if (stopped_) return absl::UnavailableError("the coordinator is stopping");
  if (streams_.size() >= kMaxStreams) {
    return absl::ResourceExhaustedError(
        "the coordinator has as many connections as it can serve; try again "
        "later");
  }
  streams_.emplace(++last_stream_, std::move(stream));
  return last_stream_;
}

void Hub::Received(StreamId stream, const proto::ExecutorMessage& message) {
  Do([&](Time now, CoordinatorCore::Carry carry) {
    core_.Received(now, stream, message, carry);
  });
}

void Hub::Remove(StreamId stream, StreamEnd end) {
  Do([&](Time now, CoordinatorCore::Carry carry) {
    core_.Ended(now, stream, end, carry);
  });
  std::lock_guard lock(streams_mutex_);
  streams_.erase(stream);
}

void Hub::Stop() {
  {
    std::lock_guard lock(streams_mutex_);
    stopped_ = true;
  }
  // If another coordinator can lead, the executors go there.
  if (leadership_ == nullptr) {
    Do([this](Time, CoordinatorCore::Carry carry) { core_.Stop(carry); });
  }
  events_.Stop();
}

std::vector<StragglerNode> Hub::TakeStragglerTime() {
  return core_.TakeStragglerTime(Now());
}

Totals Hub::totals() const { return core_.totals(); }

absl::StatusOr<proto::StatusReply> Hub::Status(
    const proto::StatusRequest& request) {
  if (request.stats()) {
    Do([&](Time now, CoordinatorCore::Carry carry) {
      core_.Watch(now, request.job(), carry);
    });
  }
  const Time now = Now();
  absl::StatusOr<proto::StatusReply> reply = core_.Status(now, request);
  if (reply.ok()) {
    reply->set_uptime_seconds(
        std::chrono::duration<double>(now - started_).count());
    if (leadership_ != nullptr) {
      const Leadership::Leader leader = leadership_->leader();
      reply->set_role(leadership_->Leads() ? "leader" : "standby");
      reply->set_leader(leader.address);
      reply->set_term(leader.term);
    }
  }
  return reply;
}

void Hub::Do(const std::function<void(Time, CoordinatorCore::Carry)>& event) {
  if (!Leads()) return;
  std::vector<Log> logs;
  Streams streams;
  event(Now(), [&](Actions* actions) {
    Apply(actions, &streams);
    for (Action& action : *actions) {
      if (Log* log = std::get_if<Log>(&action)) logs.push_back(std::move(*log));
    }
  });
  for (const std::shared_ptr<SessionStream>& stream : streams) stream->Flush();
  WakeTimer();
  for (const Log& log : logs) Write(log);
}

std::shared_ptr<SessionStream> Hub::Find(StreamId stream) const {
  std::lock_guard lock(streams_mutex_);
  const auto it = streams_.find(stream);
  return it == streams_.end() ? nullptr : it->second;
}

void Hub::Apply(Actions* actions, Streams* streams) {
  for (Action& action : *actions) {
    if (Send* send = std::get_if<Send>(&action)) {
      if (leadership_ != nullptr && send->message.is_welcome()) {
        proto::CoordinatorMessage own;
        own.mutable_welcome()->set_term(leadership_->term());
        send->message = send->message.With(own);
      }
      if (auto stream = Find(send->stream)) {
        stream->Push(std::move(send->message));
        streams->push_back(std::move(stream));
      }
    } else if (Close* close = std::get_if<Close>(&action)) {
      if (auto stream = Find(close->stream)) {
        stream->Close(std::move(close->status));
        streams->push_back(std::move(stream));
      }
    } else if (const Log* log = std::get_if<Log>(&action)) {
      events_.Add(*log);
    }
    metrics_->Observe(action);
  }
}

// Buckets set and clear deadlines all the time. A timer that sometimes wakes
// too early costs less than one that is notified of every change.
void Hub::WakeTimer() {
  const std::optional<Time> deadline = core_.Deadline();
  if (!deadline) return;
  std::lock_guard lock(timer_mutex_);
  if (timer_waits_for_ && *timer_waits_for_ <= *deadline) return;
  timer_waits_for_ = deadline;
  deadline_changed_.notify_all();
}

// No deadline is missed: if it is set after the timer has asked the core, then
// WakeTimer() sees what the timer waits for, because both hold timer_mutex_.
void Hub::RunTimer() {
  std::unique_lock lock(timer_mutex_);
  while (!timer_ends_) {
    const std::optional<Time> deadline = core_.Deadline();
    timer_waits_for_ = deadline;
    if (!deadline || !Leads()) {
      // A coordinator that has jobs but no longer leads is about to end.
      deadline_changed_.wait(lock);
    } else if (Now() < *deadline) {
      deadline_changed_.wait_until(lock, ToClock(*deadline));
    } else {
      lock.unlock();
      Do([this](Time now, CoordinatorCore::Carry carry) {
        core_.Passed(now, carry);
      });
      lock.lock();
    }
  }
}

}  // namespace maypole::coordinator
