#include "worker/network/grpc_transport.h"

#include <grpc/support/time.h>
#include <grpcpp/alarm.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/program/secret.h"

namespace maypole::worker {
namespace {

constexpr int kKeepaliveMs = 2000;
// Of three coordinators, each gets this part of the default --resume_timeout.
constexpr std::chrono::milliseconds kLaterShare(1000);
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
// others: a part of the time for the first contact, and later so much that the
// executor finds the leader again while that waits for it (its own
// --resume_timeout, which the executor does not know).
std::chrono::milliseconds Share(const GrpcTransportOptions& options,
                                bool reached) {
  const auto number =
      static_cast<int64_t>(options.coordinators->addresses().size());
  const auto share =
      std::max(options.connect_timeout / number, std::chrono::milliseconds(1));
  const bool others = number > 1;
  return reached && others ? std::min(share, kLaterShare) : share;
}

// A random part of the pause, so that the executors of a cluster do not all
// come back to a restarted coordinator at the same moment.
std::chrono::milliseconds WithJitter(std::chrono::milliseconds pause) {
  thread_local std::minstd_rand random(std::random_device{}());
  return std::chrono::milliseconds(std::uniform_int_distribution<int64_t>(
      pause.count() / 2, pause.count())(random));
}

// A time from now, whatever happens to the clock on the wall.
gpr_timespec In(std::chrono::nanoseconds time) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_nanos(time.count(), GPR_TIMESPAN));
}

}  // namespace

// What the completion queue says has happened.
enum class GrpcTransport::Event : intptr_t {
  kStarted = 1,
  kRead,
  kWritten,
  kFinished,
  kAlarm
};

struct GrpcTransport::Call {
  static void* Tag(Event event) {
    return reinterpret_cast<void*>(static_cast<intptr_t>(event));
  }

  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  std::unique_ptr<proto::Coordinator::Stub> stub;
  std::unique_ptr<Stream> stream;
  proto::CoordinatorMessage incoming;
  grpc::Status status;
  // Wakes the main thread when another thread makes an acknowledgement due.
  grpc::Alarm alarm;
  bool alarm_set = false;
  bool cancelled = false;  // there was no Welcome in time
};

GrpcTransport::GrpcTransport(GrpcTransportOptions options,
                             TransportCallbacks callbacks)
    : options_(std::move(options)),
      callbacks_(std::move(callbacks)),
      choice_(*options_.coordinators),
      session_(options_.hello),
      main_([this] { Main(); }) {}

GrpcTransport::~GrpcTransport() {
  {
    std::unique_lock lock(mutex_);
    closing_ = true;
    changed_.notify_all();
    Write();  // half-closes the stream; then the coordinator ends it
    changed_.wait_for(lock, kLeaveTime, [this] { return finished_; });
    if (context_ != nullptr) context_->TryCancel();
  }
  main_.join();
}

uint64_t GrpcTransport::Send(proto::ExecutorMessage message) {
  std::lock_guard lock(mutex_);
  uint64_t sequence = 0;
  for (proto::ExecutorMessage& part : session_.PartsOf(std::move(message))) {
    const proto::ExecutorMessage* numbered = session_.Push(std::move(part));
    if (numbered == nullptr) {
      const bool lost = session_.overflowed() || session_.too_long() > 0;
      if (lost && context_ != nullptr) context_->TryCancel();
      return 0;
    }
    sequence = numbered->sequence();
    ack_due_since_.reset();
    if (!up_) continue;
    outgoing_.push_back(*numbered);
    Write();
  }
  return sequence;
}

absl::Status GrpcTransport::UnreachableStatus(const absl::Status& last) const {
  const std::string tls = DiagnoseTls(choice_.address(), options_.tls);
  return absl::UnavailableError(absl::StrCat(
      "cannot reach the coordinator at ",
      absl::StrJoin(choice_.addresses(), ","), ": ",
      tls.empty() ? std::string(last.message()) : tls, " (tried for ",
      options_.connect_timeout.count() / 1000.0, " s)"));
}

absl::Status GrpcTransport::Fault() const {
  if (session_.overflowed()) {
    return absl::UnavailableError(absl::StrCat(
        "coordinator ", choice_.address(), " lost: it has not acknowledged ",
        kMaxUnacknowledged, " messages"));
  }
  if (session_.too_long() > 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "coordinator ", choice_.address(), " lost: a message to it would have ",
        session_.too_long(), " bytes; it takes at most ",
        kMaxExecutorMessageBytes));
  }
  return absl::OkStatus();
}

void GrpcTransport::Main() {
  Clock::time_point deadline = Clock::now() + options_.connect_timeout;
  std::chrono::milliseconds pause(kReconnectFirstMs);
  absl::Status lost;
  // Why it was not reached: the last that was heard, not that the last try was
  // short.
  absl::Status unreachable;
  bool reached = false;
  for (;;) {
    const End end =
        OneStream(std::min(deadline, Clock::now() + Share(options_, reached)));
    if (!end.timed_out || unreachable.ok()) unreachable = end.status;
    if (end.welcomed) pause = std::chrono::milliseconds(kReconnectFirstMs);
    std::unique_lock lock(mutex_);
    if (closing_) break;
    lost = Fault();
    if (!lost.ok()) break;
    reached = session_.reached();
    // The executor that has this node's place may be about to end: that of an
    // agent that was killed serves the ranks that it has.
    const bool taken = !reached && absl::IsAlreadyExists(end.status);
    if (end.final && !taken) {
      lost = end.status;
      break;
    }
    lock.unlock();
    if (reached) {
      if (end.welcomed) {
        callbacks_.on_away(absl::UnavailableError(
            absl::StrCat("coordinator ", choice_.address(),
                         " lost: ", end.status.message())));
      }
      deadline = Clock::now() + options_.connect_timeout;
    } else if (Clock::now() >= deadline) {
      lost = absl::IsAlreadyExists(unreachable)
                 ? unreachable
                 : UnreachableStatus(unreachable);
      break;
    }
    // After a stream that worked, the same coordinator is tried first.
    if (!end.welcomed && !taken) choice_.Next();
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
  Call call;
  call.context.AddMetadata(kSecretMetadata, options_.credential);
  bool reached = false;
  {
    std::lock_guard lock(mutex_);
    if (closing_) return {};
    reached = session_.reached();
    context_ = &call.context;
    writing_ = half_closed_ = false;
  }
  // A channel of its own: one whose connection was refused waits for seconds
  // before it tries again, whatever its arguments say.
  call.stub = proto::Coordinator::NewStub(
      MakeChannel(choice_.address(), options_.tls, Share(options_, reached)));
  call.stream = call.stub->PrepareAsyncSession(&call.context, &call.queue);
  call.stream->StartCall(Call::Tag(Event::kStarted));
  End end;
  while (Step(&call, deadline, &end)) {
  }
  std::lock_guard lock(mutex_);
  context_ = nullptr;
  if (end.final || !end.status.ok()) return end;
  const grpc::Status& status = call.status;
  end.timed_out =
      call.cancelled && status.error_code() == grpc::StatusCode::CANCELLED;
  if (end.timed_out) {
    end.status = absl::UnavailableError("it does not answer");
    return end;
  }
  end.final = IsRefusal(static_cast<absl::StatusCode>(status.error_code()));
  const std::string text =
      !status.error_message().empty() ? status.error_message()
      : status.ok()
          ? "it has ended the stream"
          : absl::StrCat("it has ended the stream with ",
                         absl::StatusCodeToString(
                             static_cast<absl::StatusCode>(status.error_code())));
  end.status = absl::Status(
      status.ok() ? absl::StatusCode::kUnavailable
                  : static_cast<absl::StatusCode>(status.error_code()),
      end.final ? absl::StrCat("coordinator ", choice_.address(), ": ", text)
                : text);
  return end;
}

bool GrpcTransport::Step(Call* call, Clock::time_point deadline, End* end) {
  Clock::time_point wake = Clock::now() + std::chrono::hours(1);
  {
    std::lock_guard lock(mutex_);
    if (!up_ && !call->cancelled) wake = deadline;
    if (ack_due_since_) wake = std::min(wake, *ack_due_since_ + kAckPause);
  }
  void* tag = nullptr;
  bool ok = false;
  const auto next = call->queue.AsyncNext(&tag, &ok, In(wake - Clock::now()));
  if (next == grpc::CompletionQueue::SHUTDOWN) return false;
  if (next == grpc::CompletionQueue::GOT_EVENT) {
    Handle(static_cast<Event>(reinterpret_cast<intptr_t>(tag)), ok, call, end);
  }
  OnTime(call, deadline);
  return true;
}

void GrpcTransport::Handle(Event event, bool ok, Call* call, End* end) {
  switch (event) {
    case Event::kStarted:
      return OnStarted(call, ok);
    case Event::kRead:
      return OnRead(call, ok, end);
    case Event::kWritten: {
      std::lock_guard lock(mutex_);
      writing_ = false;
      if (ok) Write();  // if not, reading fails, too
      return;
    }
    case Event::kFinished:
      call->alarm.Cancel();
      return call->queue.Shutdown();  // drops nothing that is outstanding
    case Event::kAlarm: {
      std::lock_guard lock(mutex_);
      call->alarm_set = false;
      return;
    }
  }
}

void GrpcTransport::OnTime(Call* call, Clock::time_point deadline) {
  std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  if (!up_ && now >= deadline && !std::exchange(call->cancelled, true)) {
    call->context.TryCancel();
  }
  if (!ack_due_since_ || now < *ack_due_since_ + kAckPause) return;
  ack_due_since_.reset();
  if (!up_) return;
  outgoing_.push_back(session_.Ack());
  Write();
}

void GrpcTransport::OnStarted(Call* call, bool ok) {
  if (!ok) return Finish(call);
  call->stream->Read(&call->incoming, Call::Tag(Event::kRead));
  std::lock_guard lock(mutex_);
  call_ = call;
  outgoing_.push_back(session_.Hello());
  Write();
}

void GrpcTransport::OnRead(Call* call, bool ok, End* end) {
  if (!ok) return Finish(call);
  const bool goes_on = end->welcomed ? Received(std::move(call->incoming), end)
                                     : Welcomed(call->incoming, end);
  if (!goes_on) {
    call->context.TryCancel();
    return Finish(call);
  }
  end->welcomed = true;
  call->incoming.Clear();
  call->stream->Read(&call->incoming, Call::Tag(Event::kRead));
}

void GrpcTransport::Finish(Call* call) {
  {
    std::lock_guard lock(mutex_);
    call_ = nullptr;
    up_ = false;
    session_.OnStreamEnded();
    outgoing_.clear();
    ack_due_since_.reset();
  }
  call->stream->Finish(&call->status, Call::Tag(Event::kFinished));
}

void GrpcTransport::Write() {
  if (call_ == nullptr || writing_ || half_closed_) return;
  void* const written = Call::Tag(Event::kWritten);
  if (!outgoing_.empty()) {
    writing_ = true;
    call_->stream->Write(outgoing_.front(), written);
    outgoing_.pop_front();
  } else if (closing_) {
    writing_ = half_closed_ = true;
    call_->stream->WritesDone(written);
  }
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
    Write();
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
    // The main thread may not look at the time for long.
    if (ack_due_since_ && call_ != nullptr &&
        !std::exchange(call_->alarm_set, true)) {
      call_->alarm.Set(&call_->queue, In(kAckPause), Call::Tag(Event::kAlarm));
    }
  }
  Acknowledged(acknowledged);
  for (auto& m : ready) callbacks_.on_message(std::move(m));
}

// What is sent next acknowledges all that has come before. Soon after a message
// there normally is one, so an acknowledgement of its own waits for a while.
void GrpcTransport::AcknowledgeIfUrgent() {
  if (!up_) return;
  if (session_.AckUrgent() && outgoing_.empty()) {
    outgoing_.push_back(session_.Ack());
    Write();
  }
  if (!session_.AckDue()) return ack_due_since_.reset();
  if (!ack_due_since_) ack_due_since_ = Clock::now();
}

}  // namespace maypole::worker
