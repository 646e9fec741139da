#include "tests/simulation/timeline/operator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"

namespace maypole::simulation {
namespace {

constexpr int64_t kLongestPause = 4 * kSecond;
constexpr int64_t kLookEvery = 200 * kMillisecond;
// From a stop to its end: ExecutorTimeline::kNodesNs, messages, and the disk.
constexpr int64_t kEndTakes = 5 * kSecond;

}  // namespace

Operator::Operator(Stage* stage, Coordinator* coordinator,
                   std::function<int64_t()> disturbed_until)
    : stage_(stage),
      coordinator_(coordinator),
      disturbed_until_(std::move(disturbed_until)),
      act_(&stage->scheduler, [this] { Act(); }),
      look_(&stage->scheduler, [this] { Look(); }) {
  Act();
  Look();
}

void Operator::Act() {
  if (coordinator_->alive()) Give(/*stop=*/stage_->random.OneIn(2));
  act_.Ask(stage_->random.Magnitude(kMillisecond, kLongestPause),
           stage_->Forever());
}

void Operator::Give(bool stop) {
  const std::optional<proto::JobStatus> job = coordinator_->JobNow();
  const auto reply = coordinator_->RecordTimeline(stop);
  if (!reply.ok()) {
    if (reply.status().code() != absl::StatusCode::kNotFound &&
        reply.status().code() != absl::StatusCode::kFailedPrecondition) {
      stage_->Found("the operator is told: ", reply.status().ToString());
    }
    return;
  }
  stage_->Trace("the operator ", stop ? "stops" : "starts", " timeline ",
                reply->path());
  if (!stop && !started_.emplace(coordinator_->lives(), reply->path()).second) {
    stage_->Found("two timelines of the job have the file ", reply->path());
  }
  ++(stop ? stage_->counts.timelines_stopped
          : stage_->counts.timelines_started);
  last_ = {.epoch = job->epoch(),
           .path = reply->path(),
           .stopped_at = stop ? stage_->scheduler.now() : 0,
           .lives = coordinator_->lives()};
}

void Operator::Look() {
  look_.Ask(kLookEvery, stage_->Forever());
  if (!last_ || !coordinator_->alive()) return;
  const std::optional<proto::JobStatus> job = coordinator_->JobNow();
  if (!job || job->epoch() != last_->epoch || job->state() != "running" ||
      job->timeline().path() != last_->path) {
    last_.reset();  // it has ended with its epoch
    return;
  }
  CheckEnd(job->timeline());
}

void Operator::CheckEnd(const proto::TimelineStatus& timeline) {
  if (timeline.state() == "off") {
    last_.reset();
    const std::string& text = stage_->timelines[timeline.path()];
    const bool complete = absl::EndsWith(text, "\n]\n");
    ++(complete ? stage_->counts.timelines_complete
                : stage_->counts.timelines_failed);
    if (complete == timeline.error().empty()) return;
    stage_->Found("the operator is told of timeline ", timeline.path(), ": '",
                  timeline.error(), "', and its file is ",
                  complete ? "complete" : "not complete");
    return;
  }
  const bool lost = coordinator_->lives() != last_->lives &&
                    timeline.state() == "on";  // the order, with its taker
  if (last_->stopped_at == 0 || lost) return;
  const int64_t since = std::max(last_->stopped_at, disturbed_until_());
  if (stage_->scheduler.now() < since + kEndTakes) return;
  stage_->Found("the operator has stopped timeline ", last_->path,
                ", and is told that it is ", timeline.state());
}

}  // namespace maypole::simulation
