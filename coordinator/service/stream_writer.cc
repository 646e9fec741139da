#include "coordinator/service/stream_writer.h"

#include <string>
#include <utility>

namespace maypole::coordinator {
namespace {

bool IsBareAck(const proto::CoordinatorMessage& m) {
  return m.payload_case() == proto::CoordinatorMessage::PAYLOAD_NOT_SET;
}

}  // namespace

StreamWriter::StreamWriter(grpc::ServerContext* context, Stream* stream,
                           const Leadership* leadership)
    : context_(context),
      stream_(stream),
      leadership_(leadership),
      thread_([this] { Run(); }) {}

void StreamWriter::Push(proto::CoordinatorMessage message) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (closing_ || writer_done_) return;
  if (IsBareAck(message) && !queue_.empty() && IsBareAck(queue_.back())) {
    queue_.back() = std::move(message);  // acknowledges all that the other did
    return;
  }
  queue_.push_back(std::move(message));
  changed_.notify_all();
}

void StreamWriter::Close(absl::Status status) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (closing_) return;
  closing_ = true;
  status_ = std::move(status);
  changed_.notify_all();
}

bool StreamWriter::closing() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return closing_;
}

grpc::Status StreamWriter::Finish() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    closing_ = true;
    reader_done_ = true;
    changed_.notify_all();
    // A peer that does not read must not block this thread forever.
    const bool done =
        changed_.wait_for(lock, kCloseGrace, [this] { return writer_done_; });
    if (!done) context_->TryCancel();
  }
  thread_.join();
  return grpc::Status(static_cast<grpc::StatusCode>(status_.code()),
                      std::string(status_.message()));
}

bool StreamWriter::Next(proto::CoordinatorMessage* message) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return closing_ || !queue_.empty(); });
  if (queue_.empty()) return false;
  *message = std::move(queue_.front());
  queue_.pop_front();
  return true;
}

bool StreamWriter::Write(const proto::CoordinatorMessage& message) {
  if (leadership_ != nullptr && !leadership_->Leads()) {
    context_->TryCancel();
    return false;
  }
  return stream_->Write(message);
}

void StreamWriter::Run() {
  proto::CoordinatorMessage message;
  bool alive = true;
  while (alive && Next(&message)) alive = Write(message);
  std::unique_lock<std::mutex> lock(mutex_);
  writer_done_ = true;
  queue_.clear();
  changed_.notify_all();
  if (!alive) return;  // the call has ended; the reader notices it, too
  const bool done =
      changed_.wait_for(lock, kCloseGrace, [this] { return reader_done_; });
  if (!done) context_->TryCancel();
}

}  // namespace maypole::coordinator
