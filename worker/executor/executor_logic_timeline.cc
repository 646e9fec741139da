// ExecutorLogic: the job's timeline.
#include <functional>
#include <utility>

#include "worker/executor/executor_logic.h"

namespace maypole::worker {

void ExecutorLogic::ToCoordinator(proto::ExecutorMessage message) {
  if (transport_ != nullptr) transport_->Send(std::move(message));
}

void ExecutorLogic::Reply(ClientId client,
                          const session::TimelineReply& reply) {
  session::TimelineReply message = reply;
  Send(client, &message, sizeof(message));
  // A rank that sleeps on the board does not watch its socket.
  if (keeper_ != nullptr) keeper_->board().WakeRanks();
}

void ExecutorLogic::SetTimeline(uint32_t word) {
  if (keeper_ != nullptr) keeper_->board().SetTimeline(word);
}

void ExecutorLogic::WriteFile(std::string text) {
  if (timeline_file_ != nullptr) timeline_file_->Write(std::move(text));
}

void ExecutorLogic::CloseFile() {
  if (timeline_file_ == nullptr) return;
  ++timeline_number_;
  timeline_file_->Close(FileEnded());
}

void ExecutorLogic::MakeFile(ClientId client, const std::string& name) {
  const std::function<void(Status)> failed = FileEnded();
  timeline_file_ =
      system_->MakeTimelineFile(clients_.at(client).pid, name, failed);
  if (timeline_file_ == nullptr) {
    failed(Status(Code::kUnimplemented, "there are no files here"));
  }
}

std::function<void(Status)> ExecutorLogic::FileEnded() {
  return [this, post = PosterFor(&timeline_number_)](Status status) {
    post([this, status = std::move(status)] {
      observer_->OnTimelineClosed(status);
      timeline_.OnFileClosed(status);
    });
  };
}

void ExecutorLogic::OnTimelineFile(ClientId id,
                                   const session::TimelineFile& message) {
  if (!timeline_.AwaitsFile(id, message.number)) return;
  timeline_file_.reset();
  if (descriptor_.valid()) {
    timeline_file_ = system_->OpenTimelineFile(std::move(descriptor_));
  }
  timeline_.OnFile(id, message.number, timeline_file_ != nullptr);
}

void ExecutorLogic::StartTimeline(const CreateBoard& a) {
  ExecutorTimeline::Epoch epoch;
  epoch.number = a.config.epoch;
  epoch.node = a.config.node_index;
  epoch.nodes = core_.NodeNames();
  for (uint32_t i = 0; i < a.clients.size(); ++i) {
    epoch.ranks[a.clients[i]] = a.config.global_rank[i];
  }
  timeline_.OnEpochStarted(std::move(epoch));
}

void ExecutorLogic::RecordIssued(const RunSpec& run) {
  std::vector<std::string> names;
  for (const PlanOperation& op : run.operations) {
    names.push_back(keeper_->IsAllotted(op.slot) ? keeper_->NameOf(op.slot)
                                                 : "");
  }
  timeline_.OnIssued(run, names);
}

}  // namespace maypole::worker
