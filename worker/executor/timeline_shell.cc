#include "worker/executor/timeline_shell.h"

#include <utility>

namespace maypole::worker {

void TimelineShell::OnEpochStarted(const CreateBoard& board,
                                   std::vector<std::string> node_names) {
  ExecutorTimeline::Epoch epoch;
  epoch.number = board.config.epoch;
  epoch.node = board.config.node_index;
  epoch.nodes = std::move(node_names);
  for (uint32_t i = 0; i < board.clients.size(); ++i) {
    epoch.ranks[board.clients[i]] = board.config.global_rank[i];
  }
  timeline_.OnEpochStarted(std::move(epoch));
}

void TimelineShell::OnFile(ClientId id, const session::TimelineFile& message) {
  if (!timeline_.AwaitsFile(id, message.number)) return;
  file_.reset();
  if (clients_.has_descriptor()) {
    file_ = system_.OpenTimelineFile(clients_.TakeDescriptor());
  }
  timeline_.OnFile(id, message.number, file_ != nullptr);
}

void TimelineShell::ToCoordinator(proto::ExecutorMessage message) {
  ways_.to_coordinator(std::move(message));
}

void TimelineShell::Reply(ClientId client,
                          const session::TimelineReply& reply) {
  session::TimelineReply message = reply;
  ways_.reply(client, &message);
}

void TimelineShell::SetTimeline(uint32_t word) { ways_.set_on_board(word); }

void TimelineShell::WriteFile(std::string text) {
  if (file_ != nullptr) file_->Write(std::move(text));
}

void TimelineShell::CloseFile() {
  if (file_ != nullptr) file_->Close(FileEnded(poster_.Renew()));
}

void TimelineShell::MakeFile(ClientId client, const std::string& name) {
  const std::function<void(Status)> failed = FileEnded(poster_.Current());
  file_ = system_.MakeTimelineFile(clients_.PidOf(client), name, failed);
  if (file_ == nullptr) {
    failed(Status(Code::kUnimplemented, "there are no files here"));
  }
}

std::function<void(Status)> TimelineShell::FileEnded(LoopPoster::Post post) {
  return [this, post = std::move(post)](Status status) {
    post([this, status = std::move(status)] {
      observer_.OnTimelineClosed(status);
      timeline_.OnFileClosed(status);
    });
  };
}

}  // namespace maypole::worker
