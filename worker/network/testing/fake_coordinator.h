// FakeCoordinator: a gRPC server for tests that follows the link's protocol;
// the test determines its messages.
//
// Thread contract: on_message is called on gRPC's threads, for one stream at a
// time; everything else is called from the test's thread.
#ifndef MAYPOLE_WORKER_NETWORK_TESTING_FAKE_COORDINATOR_H_
#define MAYPOLE_WORKER_NETWORK_TESTING_FAKE_COORDINATOR_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "common/limits.h"
#include "common/program/secret.h"
#include "common/wire/link.h"
#include "proto/coordinator.grpc.pb.h"

namespace maypole::worker {

class FakeCoordinator : public proto::Coordinator::Service {
 public:
  using Reply = std::function<void(proto::CoordinatorMessage)>;

  // Answers with `reply`, which numbers the messages.
  using OnMessage =
      std::function<void(const proto::ExecutorMessage&, const Reply& reply)>;

  // With port 0, any free port is used. At a port that executors call already,
  // give `on_message` here.
  explicit FakeCoordinator(int port = 0, std::string incarnation = "i",
                           OnMessage message_handler = nullptr)
      : on_message(std::move(message_handler)),
        incarnation_(std::move(incarnation)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port),
                             grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeCoordinator() override { Stop(); }

  void Stop() {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }

  int port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  // Breaks the current stream, as a network failure would.
  void Break() {
    std::lock_guard lock(mutex_);
    if (context_ != nullptr) context_->TryCancel();
  }

  // Set these before the first stream.
  OnMessage on_message;
  uint64_t term = 0;
  std::string refusal;  // if not empty, each hello is refused with this text
  // So many hellos are refused because another executor has the node's place.
  std::atomic<int> taken = 0;
  bool ack_nothing = false;
  // Gets every second message instead of the stream, as if it came through
  // other executors.
  std::function<void(proto::CoordinatorMessage)> relay;

  // Messages that were nothing but an acknowledgement; and messages of this
  // side that are not acknowledged.
  std::atomic<int> bare_acks = 0;
  std::atomic<size_t> unacknowledged = 0;

  int hellos() const {
    std::lock_guard lock(mutex_);
    return hellos_;
  }
  std::string secret() const {
    std::lock_guard lock(mutex_);
    return secret_;
  }

  grpc::Status Session(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<proto::CoordinatorMessage,
                               proto::ExecutorMessage>* stream) override {
    proto::ExecutorMessage message;
    if (!stream->Read(&message)) return grpc::Status::OK;
    if (!refusal.empty()) {
      return Refuse(grpc::StatusCode::PERMISSION_DENIED, refusal, stream);
    }
    if (taken.fetch_sub(1) > 0) {
      return Refuse(grpc::StatusCode::ALREADY_EXISTS, "taken", stream);
    }
    std::lock_guard one_stream(stream_mutex_);
    Greet(context, message, stream);
    while (stream->Read(&message)) Handle(message, stream);
    std::lock_guard lock(mutex_);
    context_ = nullptr;
    return grpc::Status::OK;
  }

 private:
  template <typename Stream>
  static grpc::Status Refuse(grpc::StatusCode code, const std::string& text,
                             Stream* stream) {
    proto::CoordinatorMessage m;
    m.mutable_refused()->set_code(code);
    m.mutable_refused()->set_message(text);
    stream->Write(m);
    return grpc::Status(code, text);
  }
  template <typename Stream>
  void Greet(grpc::ServerContext* context, const proto::ExecutorMessage& hello,
             Stream* stream) {
    std::lock_guard lock(mutex_);
    context_ = context;
    ++hellos_;
    const auto it = context->client_metadata().find(kSecretMetadata);
    if (it != context->client_metadata().end()) {
      secret_ = std::string(it->second.data(), it->second.size());
    }
    const std::string& before = hello.hello().incarnation();
    if (before.empty() || before == incarnation_) {
      link_.OnReceived(0, hello.acknowledged());
    }
    proto::CoordinatorMessage welcome;
    welcome.mutable_welcome()->set_session("s");
    welcome.mutable_welcome()->set_incarnation(incarnation_);
    welcome.mutable_welcome()->set_term(term);
    welcome.mutable_welcome()->set_protocol_version(kProtocolVersion);
    stream->Write(link_.Bare(welcome));
    link_.Resend([&](const proto::CoordinatorMessage& m) { stream->Write(m); });
  }

  template <typename Stream>
  void Handle(const proto::ExecutorMessage& message, Stream* stream) {
    if (ack_nothing) return;
    const Receipt receipt =
        link_.OnReceived(message.sequence(), message.acknowledged());
    if (receipt == Receipt::kNew && on_message) {
      on_message(message, [&](proto::CoordinatorMessage m) {
        const proto::CoordinatorMessage* n = link_.Push(std::move(m));
        if (relay && n->sequence() % 2 == 0) {
          relay(*n);
        } else {
          stream->Write(*n);
        }
      });
    }
    bare_acks += receipt == Receipt::kUnnumbered;
    unacknowledged = link_.unacknowledged();
    if (link_.AckDue()) stream->Write(link_.Bare({}));
  }

  const std::string incarnation_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  std::mutex stream_mutex_;  // one stream at a time owns link_
  Link<proto::CoordinatorMessage> link_{1000};
  mutable std::mutex mutex_;
  grpc::ServerContext* context_ = nullptr;
  int hellos_ = 0;
  std::string secret_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_NETWORK_TESTING_FAKE_COORDINATOR_H_
