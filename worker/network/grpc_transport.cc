#include "worker/network/grpc_transport.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/program/secret.h"

namespace maypole::worker {
namespace {

constexpr int kKeepaliveMs = 2000;
// How long the destructor waits for the coordinator to end the stream.
constexpr auto kLeaveTime = std::chrono::milliseconds(1000);

std::shared_ptr<grpc::Channel> MakeChannel(
    const std::string& address, const TlsOptions& tls,
    std::chrono::milliseconds connect_timeout) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 0);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectFirstMs);
  // Despite its name, this option also bounds one attempt to connect.
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
              static_cast<int>(connect_timeout.count()));
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMostMs);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetMaxReceiveMessageSize(kMaxCoordinatorMessageBytes);
  SetServerName(tls, &args);
  return grpc::CreateCustomChannel(address, ClientCredentials(tls), args);
}

// Of several coordinators, one that does not answer must leave time for the
// others.
std::chrono::milliseconds Share(const GrpcTransportOptions& options) {
  return std::max(
      options.connect_timeout / static_cast<int64_t>(options.addresses.size()),
      std::chrono::milliseconds(1));
}

// A random part of the pause, so that the executors of a cluster do not all
// come back to a restarted coordinator at the same moment.
std::chrono::milliseconds WithJitter(std::chrono::milliseconds pause) {
  thread_local std::minstd_rand random(std::random_device{}());
  return std::chrono::milliseconds(std::uniform_int_distribution<int64_t>(
      pause.count() / 2, pause.count())(random));
}

}  // namespace

GrpcTransport::GrpcTransport(GrpcTransportOptions options,
                             TransportCallbacks callbacks)
    : options_(std::move(options)),
      callbacks_(std::move(callbacks)),
      choice_(options_.addresses),
      session_(options_.hello),
      main_([this] { Main(); }) {}

GrpcTransport::~GrpcTransport() {
  {
    std::unique_lock lock(mutex_);
    closing_ = true;
    changed_.notify_all();
    // The writer half-closes the stream; then the coordinator ends it.
    changed_.wait_for(lock, kLeaveTime, [this] { return finished_; });
    if (context_ != nullptr) context_->TryCancel();
  }
  main_.join();
}

uint64_t GrpcTransport::Send(proto::ExecutorMessage message) {
  std::lock_guard lock(mutex_);
  const proto::ExecutorMessage* numbered = session_.Push(std::move(message));
  if (numbered == nullptr) {
    if (session_.overflowed() && context_ != nullptr) context_->TryCancel();
    return 0;
  }
  if (up_) {
    outgoing_.push_back(*numbered);
    changed_.notify_all();
  }
  return numbered->sequence();
}

absl::Status GrpcTransport::UnreachableStatus(const absl::Status& last) const {
  const std::string tls = DiagnoseTls(choice_.address(), options_.tls);
  return absl::UnavailableError(absl::StrCat(
      "cannot reach the coordinator at ",
      absl::StrJoin(options_.addresses, ","), ": ",
      tls.empty() ? std::string(last.message()) : tls, " (tried for ",
      options_.connect_timeout.count() / 1000.0, " s)"));
}

void GrpcTransport::Main() {
  Clock::time_point deadline = Clock::now() + options_.connect_timeout;
  std::chrono::milliseconds pause(kReconnectFirstMs);
  absl::Status lost;
  for (;;) {
    const End end =
        OneStream(std::min(deadline, Clock::now() + Share(options_)));
    if (end.welcomed) pause = std::chrono::milliseconds(kReconnectFirstMs);
    std::unique_lock lock(mutex_);
    if (closing_) break;
    if (session_.overflowed()) {
      lost = absl::UnavailableError(absl::StrCat(
          "coordinator ", choice_.address(), " lost: it has not acknowledged ",
          kMaxUnacknowledged, " messages"));
      break;
    }
    if (end.final) {
      lost = end.status;
      break;
    }
    const bool reached = session_.reached();
    lock.unlock();
    if (reached) {
      if (end.welcomed) {
        callbacks_.on_away(absl::UnavailableError(
            absl::StrCat("coordinator ", choice_.address(),
                         " lost: ", end.status.message())));
      }
      deadline = Clock::now() + options_.connect_timeout;
    } else if (Clock::now() >= deadline) {
      lost = UnreachableStatus(end.status);
      break;
    }
    // After a stream that worked, the same coordinator is tried first.
    if (!end.welcomed) choice_.Next();
    if (!Pause(WithJitter(pause))) break;
    pause = std::min(pause * 2, std::chrono::milliseconds(kReconnectMostMs));
  }
  std::lock_guard delivery(delivery_);
  if (!lost.ok()) callbacks_.on_lost(lost);
  std::lock_guard lock(mutex_);
  finished_ = true;
  changed_.notify_all();
}

bool GrpcTransport::Pause(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, time, [this] { return closing_; });
}

GrpcTransport::End GrpcTransport::OneStream(Clock::time_point deadline) {
  grpc::ClientContext context;
  context.AddMetadata(kSecretMetadata, options_.secret);
  {
    std::lock_guard lock(mutex_);
    if (closing_) return {};
    context_ = &context;
    ending_ = false;
  }
  // A channel of its own: one whose connection was refused waits for seconds
  // before it tries again, whatever its arguments say.
  const auto stub = proto::Coordinator::NewStub(
      MakeChannel(choice_.address(), options_.tls, Share(options_)));
  const std::unique_ptr<Stream> stream = stub->Session(&context);
  proto::ExecutorMessage hello;
  {
    std::lock_guard lock(mutex_);
    hello = session_.Hello();
  }
  stream->Write(hello);  // if this fails, Read() fails, too
  std::thread writer([&] { WriteStream(stream.get(), &context, deadline); });
  End end = ReadStream(stream.get());
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
    up_ = false;
    session_.OnStreamEnded();
    outgoing_.clear();
    changed_.notify_all();
  }
  if (end.final) context.TryCancel();
  writer.join();
  const grpc::Status status = stream->Finish();
  std::lock_guard lock(mutex_);
  context_ = nullptr;
  if (end.final) return end;
  end.final = IsRefusal(static_cast<absl::StatusCode>(status.error_code()));
  const std::string text = status.error_message();
  end.status = absl::Status(
      status.ok() ? absl::StatusCode::kUnavailable
                  : static_cast<absl::StatusCode>(status.error_code()),
      end.final ? absl::StrCat("coordinator ", choice_.address(), ": ", text)
                : (text.empty() ? "it has ended the stream" : text));
  return end;
}

GrpcTransport::End GrpcTransport::ReadStream(Stream* stream) {
  End end;
  proto::CoordinatorMessage message;
  if (!stream->Read(&message) || !Welcomed(message, &end)) return end;
  end.welcomed = true;
  while (stream->Read(&message)) {
    if (!Received(std::move(message), &end)) return end;
    message.Clear();
  }
  return end;
}

bool GrpcTransport::Welcomed(const proto::CoordinatorMessage& first, End* end) {
  if (first.has_welcome()) {
    end->status = choice_.Join(first.welcome().term());
    if (!end->status.ok()) return false;
  }
  using Welcome = CoordinatorSession::Welcome;
  std::lock_guard delivery(delivery_);
  absl::StatusOr<Welcome> welcome;
  {
    std::lock_guard lock(mutex_);
    welcome = session_.OnWelcome(first, choice_.address());
    if (!welcome.ok()) {
      end->final = true;
      end->status = welcome.status();
      return false;
    }
    up_ = true;
    session_.Resend(
        [this](const proto::ExecutorMessage& m) { outgoing_.push_back(m); });
    changed_.notify_all();
  }
  if (*welcome == Welcome::kReplaced) {
    acknowledged_ = 0;
    callbacks_.on_replaced();
    return true;
  }
  if (*welcome == Welcome::kResumed) callbacks_.on_reconnected();
  Acknowledged(first.acknowledged());
  return true;
}

void GrpcTransport::Acknowledged(uint64_t sequence) {
  if (sequence > acknowledged_) callbacks_.on_acknowledged(sequence);
  acknowledged_ = std::max(acknowledged_, sequence);
}

bool GrpcTransport::Received(proto::CoordinatorMessage message, End* end) {
  const bool refused = message.has_refused();
  const std::string why =
      refused ? message.refused().message() : "its messages are out of order";
  std::lock_guard delivery(delivery_);
  CoordinatorSession::Messages ready;
  bool allowed = false;
  uint64_t acknowledged = 0;
  {
    std::lock_guard lock(mutex_);
    allowed = session_.OnReceived(std::move(message), &ready);
    acknowledged = session_.acknowledged();
    AcknowledgeIfUrgent();
  }
  if (!allowed || refused) {
    end->final = true;
    end->status = absl::UnavailableError(
        absl::StrCat("coordinator ", choice_.address(), " lost: ", why));
    return false;
  }
  Acknowledged(acknowledged);
  for (auto& m : ready) callbacks_.on_message(std::move(m));
  return true;
}

void GrpcTransport::TakeRelayed(const std::string& incarnation,
                                proto::CoordinatorMessage message) {
  std::lock_guard delivery(delivery_);
  CoordinatorSession::Messages ready;
  uint64_t acknowledged = 0;
  {
    std::lock_guard lock(mutex_);
    if (finished_) return;
    session_.OnRelayed(incarnation, std::move(message), &ready);
    acknowledged = session_.acknowledged();
    AcknowledgeIfUrgent();
  }
  Acknowledged(acknowledged);
  for (auto& m : ready) callbacks_.on_message(std::move(m));
}

void GrpcTransport::AcknowledgeIfUrgent() {
  const bool urgent = up_ && session_.AckUrgent() && outgoing_.empty();
  if (urgent) outgoing_.push_back(session_.Ack());
  if (urgent || (idle_ && session_.AckDue())) changed_.notify_all();
}

// What is sent next acknowledges all that has come before. Soon after a message
// there normally is one, so the reader need not wake the writer for an ack.
void GrpcTransport::AwaitOutgoing(std::unique_lock<std::mutex>& lock) {
  const auto has_work = [this] {
    return ending_ || closing_ || !outgoing_.empty();
  };
  while (!changed_.wait_for(lock, kAckPause, has_work)) {
    if (session_.AckDue()) {
      outgoing_.push_back(session_.Ack());
      return;
    }
    idle_ = true;
    changed_.wait(lock, [&] { return has_work() || session_.AckDue(); });
    idle_ = false;
  }
}

void GrpcTransport::WriteStream(Stream* stream, grpc::ClientContext* context,
                                Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  const auto welcomed_or_over = [this] { return up_ || ending_ || closing_; };
  if (!changed_.wait_until(lock, deadline, welcomed_or_over)) {
    context->TryCancel();  // there was no Welcome in time
    return;
  }
  for (;;) {
    AwaitOutgoing(lock);
    if (ending_) return;
    if (outgoing_.empty()) break;  // closing, and everything is sent
    const proto::ExecutorMessage message = std::move(outgoing_.front());
    outgoing_.pop_front();
    lock.unlock();
    const bool written = stream->Write(message);
    lock.lock();
    if (!written) return;  // Read() fails, too
  }
  lock.unlock();
  stream->WritesDone();
}

}  // namespace maypole::worker
