#include "coordinator/service/session_stream.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "coordinator/service/peer.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/support/slice.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {
namespace {

// Shorter bodies are copied, which costs less than sharing them.
constexpr size_t kSharedBytes = 512;

grpc::Slice Share(const Outgoing::Bytes& bytes) {
  if (bytes->size() < kSharedBytes) return grpc::Slice(*bytes);
  return grpc::Slice(
      const_cast<char*>(bytes->data()), bytes->size(),
      [](void* kept) { delete static_cast<Outgoing::Bytes*>(kept); },
      new Outgoing::Bytes(bytes));
}

grpc::ByteBuffer Serialized(const Outgoing& message) {
  const grpc::Slice slices[] = {
      grpc::Slice(message.Head()),
      message.Body() == nullptr ? grpc::Slice() : Share(message.Body())};
  return grpc::ByteBuffer(slices, message.Body() == nullptr ? 1 : 2);
}

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      std::string(status.message()));
}

}  // namespace

SessionStream::Reactor* SessionStream::Start(
    grpc::CallbackServerContext* context, Hub* hub, MayJoin may_join) {
  const std::shared_ptr<SessionStream> stream(
      new SessionStream(context, hub, std::move(may_join)));
  stream->self_ = stream;
  const absl::StatusOr<StreamId> id = hub->Add(stream);
  if (id.ok()) {
    stream->id_ = *id;
    stream->StartRead(&stream->incoming_);
  } else {
    stream->Close(id.status());
    stream->Flush();
  }
  return stream.get();
}

void SessionStream::Push(Outgoing message) {
  std::lock_guard lock(mutex_);
  if (closing_) return;
  if (message.IsBareAck() && !queue_.empty() && queue_.back().IsBareAck()) {
    queue_.back() = std::move(message);  // acknowledges all that the other ack
                                         // did
    return;
  }
  queue_.push_back(std::move(message));
}

void SessionStream::Close(absl::Status status) {
  std::lock_guard lock(mutex_);
  BeginToClose(std::move(status));
}

void SessionStream::Flush() {
  std::lock_guard lock(mutex_);
  Continue();
}

void SessionStream::BeginToClose(absl::Status status) {
  if (closing_) return;
  closing_ = true;
  status_ = std::move(status);
  if (!writing_ && queue_.empty()) return;
  // A peer that does not read must not keep the stream. Nor must the alarm: its
  // callback may come long after it was cancelled.
  alarm_.Set(std::chrono::system_clock::now() + kCloseGrace,
             [weak = std::weak_ptr<SessionStream>(self_)](bool) {
               const std::shared_ptr<SessionStream> stream = weak.lock();
               if (stream == nullptr) return;
               std::lock_guard lock(stream->mutex_);
               if (!stream->done_ && !stream->finished_) {
                 stream->context_->TryCancel();
               }
             });
}

void SessionStream::Continue() {
  if (writing_ || finished_) return;
  if (!queue_.empty() && !cancelled_ && !hub_->Leads()) {
    cancelled_ = true;
    context_->TryCancel();
    BeginToClose(absl::CancelledError("this coordinator leads no more"));
  }
  if (!queue_.empty() && !cancelled_) {
    writing_ = true;
    written_ = Serialized(queue_.front());
    queue_.pop_front();
    StartWrite(&written_);
  } else if (closing_) {
    finished_ = true;
    queue_.clear();
    Finish(ToGrpc(status_));
  }
}

// --- Called by gRPC ----------------------------------------------------------

void SessionStream::OnReadDone(bool ok) {
  if (!ok) {  // the executor has half-closed the stream, or it is broken
    std::lock_guard lock(mutex_);
    BeginToClose(absl::OkStatus());
    return Continue();
  }
  const size_t bytes = incoming_.Length();  // reading it clears it
  auto* const message =
      google::protobuf::Arena::CreateMessage<proto::ExecutorMessage>(&arena_);
  const bool readable =
      grpc::SerializationTraits<proto::ExecutorMessage>::Deserialize(&incoming_,
                                                                     message)
          .ok();
  absl::Status status;
  if (readable && message->has_hello()) {
    status = may_join_(message->hello().job());
    message->mutable_hello()->set_seen_address(PeerAddress(context_->peer()));
    versions_ = {message->hello().protocol_version(),
                 message->hello().newest_version()};
  }
  if (readable && status.ok()) hub_->Received(id_, *message);
  arena_.Reset();
  std::lock_guard lock(mutex_);
  if (!readable) status = UnreadableStatus(bytes);
  if (!status.ok()) {
    BeginToClose(std::move(status));
    Continue();
  }
  if (!finished_) StartRead(&incoming_);
}

// Different versions are a cause only if the versions differ.
absl::Status SessionStream::UnreadableStatus(size_t bytes) const {
  const std::string what =
      absl::StrCat("a message of ", bytes, " bytes that is no ExecutorMessage");
  const std::string ours = VersionsText(kProtocolVersions);
  if (versions_ == VersionRange()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what,
                     ", where a hello is expected; this coordinator "
                     "speaks ",
                     ours));
  }
  if (versions_ == kProtocolVersions) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ", although both sides speak ", ours,
                     "; it was damaged on its way, or this is a fault of "
                     "Maypole"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(what, "; the executor speaks ", VersionsText(versions_),
                   ", this coordinator ", ours,
                   ": run the same version of Maypole on all nodes"));
}

void SessionStream::OnWriteDone(bool ok) {
  std::lock_guard lock(mutex_);
  writing_ = false;
  if (!ok) queue_.clear();  // the stream is broken: OnCancel() follows
  Continue();
}

void SessionStream::OnCancel() {
  std::lock_guard lock(mutex_);
  cancelled_ = true;
  BeginToClose(absl::CancelledError("the stream is broken"));
  Continue();
}

void SessionStream::OnDone() {
  std::shared_ptr<SessionStream> self;
  {
    std::lock_guard lock(mutex_);
    done_ = true;
    self = std::move(self_);
  }
  alarm_.Cancel();
  if (id_ == 0) return;  // the Hub has not accepted it
  hub_->Remove(id_, cancelled_ ? StreamEnd::kBroken : StreamEnd::kFinished);
}

}  // namespace maypole::coordinator
