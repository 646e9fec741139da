#include "coordinator/service/hub.h"

#include <chrono>
#include <utility>
#include <variant>
#include <vector>

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

Hub::Hub(const Config& config, std::string incarnation, Metrics* metrics)
    : metrics_(metrics),
      started_(Now()),
      core_(config, std::move(incarnation)),
      timer_([this] { RunTimer(); }) {}

Hub::~Hub() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    timer_ends_ = true;
    deadline_changed_.notify_all();
  }
  timer_.join();
}

absl::StatusOr<StreamId> Hub::Add(StreamWriter* writer) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (stopped_) return absl::UnavailableError("the coordinator is stopping");
  if (streams_.size() >= kMaxStreams) {
    return absl::ResourceExhaustedError(
        "the coordinator has as many connections as it can serve; try again "
        "later");
  }
  streams_.emplace(++last_stream_, writer);
  return last_stream_;
}

void Hub::Received(StreamId stream, const proto::ExecutorMessage& message) {
  Do([&](Time now, Actions* actions) {
    // Read just before the stream was closed by what came from another.
    if (streams_.at(stream)->closing()) return;
    core_.Received(now, stream, message, actions);
  });
}

void Hub::Remove(StreamId stream, StreamEnd end) {
  Do([&](Time now, Actions* actions) {
    core_.Ended(now, stream, end, actions);
    streams_.erase(stream);
  });
}

void Hub::Stop() {
  Do([this](Time, Actions* actions) {
    stopped_ = true;
    core_.Stop(actions);
  });
  events_.Stop();
}

std::vector<NodeLate> Hub::TakeLateness() {
  std::lock_guard<std::mutex> lock(mutex_);
  return core_.TakeLateness(Now());
}

Totals Hub::totals() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return core_.totals();
}

absl::StatusOr<proto::StatusReply> Hub::Status(
    const proto::StatusRequest& request) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const Time now = Now();
  absl::StatusOr<proto::StatusReply> reply = core_.Status(now, request);
  if (reply.ok()) {
    reply->set_uptime_seconds(
        std::chrono::duration<double>(now - started_).count());
  }
  return reply;
}

absl::StatusOr<proto::AbortReply> Hub::Abort(
    const proto::AbortRequest& request) {
  absl::StatusOr<proto::AbortReply> reply;
  Do([&](Time now, Actions* actions) {
    reply = core_.Abort(now, request, actions);
  });
  return reply;
}

absl::StatusOr<proto::DrainReply> Hub::Drain(
    const proto::DrainRequest& request) {
  absl::StatusOr<proto::DrainReply> reply;
  Do([&](Time, Actions* actions) { reply = core_.Drain(request, actions); });
  return reply;
}

void Hub::Do(const std::function<void(Time, Actions*)>& event) {
  Actions actions;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    event(Now(), &actions);
    Apply(&actions);
    const std::optional<Time> deadline = core_.Deadline();
    deadline_ = deadline;
    // Buckets set and clear deadlines all the time: a timer that wakes early
    // for nothing costs less than one that is told of each.
    if (deadline && (!timer_waits_for_ || *deadline < *timer_waits_for_)) {
      timer_waits_for_ = deadline;
      deadline_changed_.notify_all();
    }
  }
  for (const Action& action : actions) {
    if (const Log* log = std::get_if<Log>(&action)) Write(*log);
  }
}

void Hub::Apply(Actions* actions) {
  for (Action& action : *actions) {
    if (Send* send = std::get_if<Send>(&action)) {
      auto it = streams_.find(send->stream);
      if (it != streams_.end()) it->second->Push(std::move(send->message));
    } else if (Close* close = std::get_if<Close>(&action)) {
      auto it = streams_.find(close->stream);
      if (it != streams_.end()) it->second->Close(std::move(close->status));
    } else if (const Log* log = std::get_if<Log>(&action)) {
      events_.Add(*log);
      metrics_->Observe(*log);
    } else if (auto* issued = std::get_if<OperationIssued>(&action)) {
      metrics_->Observe(*issued);
    } else if (auto* run = std::get_if<RunIssued>(&action)) {
      metrics_->Observe(*run);
    } else if (auto* bucket = std::get_if<BucketRan>(&action)) {
      metrics_->Observe(*bucket);
    } else if (auto* error = std::get_if<ErrorCounted>(&action)) {
      metrics_->Observe(*error);
    } else if (auto* late = std::get_if<NodeLate>(&action)) {
      metrics_->Observe(*late);
    } else if (auto* again = std::get_if<Reconnected>(&action)) {
      metrics_->Observe(*again);
    }
  }
}

void Hub::RunTimer() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!timer_ends_) {
    timer_waits_for_ = deadline_;
    if (!deadline_) {
      deadline_changed_.wait(lock);
    } else if (Now() < *deadline_) {
      // (By value: who changes deadline_ does not always wake us.)
      deadline_changed_.wait_until(lock, ToClock(Time(*deadline_)));
    } else {
      lock.unlock();
      Do([this](Time now, Actions* actions) { core_.Passed(now, actions); });
      lock.lock();
    }
  }
}

}  // namespace maypole::coordinator
