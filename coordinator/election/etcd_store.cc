#include "coordinator/election/etcd_store.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpc/grpc.h"
#include "grpcpp/create_channel.h"

namespace maypole::coordinator {
namespace {

namespace pb = etcdserverpb;

constexpr int kFirstReconnectMs = 50;
constexpr int kMostReconnectMs = 500;
// How long one attempt to connect may take (the option's name says otherwise).
constexpr int kConnectMs = 2000;
constexpr std::chrono::milliseconds kWatchPause(200);
// More than any answer here has.
constexpr int kMaxAnswerBytes = 1 << 20;

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const TlsOptions& tls) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstReconnectMs);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMostReconnectMs);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetMaxReceiveMessageSize(kMaxAnswerBytes);
  SetServerName(tls, &args);
  return grpc::CreateCustomChannel(address, ClientCredentials(tls), args);
}

Seen ToSeen(const pb::RangeResponse& response) {
  if (response.kvs().empty()) return {};
  const pb::KeyValue& kv = response.kvs(0);
  return {Holder{kv.value(), kv.lease(),
                 static_cast<uint64_t>(kv.create_revision())}};
}

CallFailed ToFailed(const grpc::Status& status) {
  return {status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED
              ? "it did not answer in time"
              : status.error_message()};
}

}  // namespace

// Registers a call's context, so that Stop() can cancel it.
class EtcdStore::Running {
 public:
  Running(EtcdStore* store, bool even_if_stopped) : store_(store) {
    std::lock_guard lock(store_->mutex_);
    store_->running_.insert(&context_);
    if (store_->stopped_ && !even_if_stopped) context_.TryCancel();
  }
  ~Running() {
    std::lock_guard lock(store_->mutex_);
    store_->running_.erase(&context_);
  }
  grpc::ClientContext* context() { return &context_; }

 private:
  EtcdStore* const store_;
  grpc::ClientContext context_;
};

EtcdStore::EtcdStore(EtcdOptions options)
    : options_(std::move(options)), key_(options_.prefix + "/leader") {
  for (const std::string& address : options_.endpoints) {
    endpoints_.push_back({address, MakeChannel(address, options_.tls)});
  }
}

StoreAnswer EtcdStore::Call(const StoreCall& call) {
  const Endpoint& to = endpoints_[current_];
  Running running(this, call.kind == StoreCall::Kind::kRevoke);
  running.context()->set_deadline(
      std::chrono::system_clock::now() +
      std::chrono::duration_cast<std::chrono::microseconds>(call.timeout));
  StoreAnswer answer = Make(call, to, running.context());
  if (auto* failed = std::get_if<CallFailed>(&answer)) {
    failed->text = absl::StrCat("etcd ", to.address, ": ", failed->text);
    current_ = (current_ + 1) % endpoints_.size();
  }
  return answer;
}

StoreAnswer EtcdStore::Make(const StoreCall& call, const Endpoint& to,
                            grpc::ClientContext* context) {
  switch (call.kind) {
    case StoreCall::Kind::kLook:
      return Look(to, context);
    case StoreCall::Kind::kGrant:
      return Grant(to, context);
    case StoreCall::Kind::kClaim:
      return Claim(to, call.lease, context);
    case StoreCall::Kind::kRenew:
      return Renew(to, call.lease, context);
    case StoreCall::Kind::kRevoke:
      return Revoke(to, call.lease, context);
  }
  return CallFailed{"unknown call"};
}

StoreAnswer EtcdStore::Look(const Endpoint& to, grpc::ClientContext* context) {
  pb::RangeRequest request;
  request.set_key(key_);
  pb::RangeResponse response;
  const grpc::Status status =
      pb::KV::NewStub(to.channel)->Range(context, request, &response);
  if (!status.ok()) return ToFailed(status);
  return ToSeen(response);
}

StoreAnswer EtcdStore::Grant(const Endpoint& to, grpc::ClientContext* context) {
  pb::LeaseGrantRequest request;
  request.set_ttl(
      std::chrono::duration_cast<std::chrono::seconds>(options_.ttl).count());
  pb::LeaseGrantResponse response;
  const grpc::Status status =
      pb::Lease::NewStub(to.channel)->LeaseGrant(context, request, &response);
  if (!status.ok()) return ToFailed(status);
  if (!response.error().empty()) return CallFailed{response.error()};
  return LeaseGranted{response.id(), std::chrono::seconds(response.ttl())};
}

// Both branches end with a read, so a claim that is repeated because its first
// answer was lost gets the same answer.
StoreAnswer EtcdStore::Claim(const Endpoint& to, LeaseId lease,
                             grpc::ClientContext* context) {
  pb::TxnRequest request;
  pb::Compare* const absent = request.add_compare();
  absent->set_result(pb::Compare::EQUAL);
  absent->set_target(pb::Compare::CREATE);
  absent->set_key(key_);
  absent->set_create_revision(0);
  pb::PutRequest* const put = request.add_success()->mutable_request_put();
  put->set_key(key_);
  put->set_value(options_.value);
  put->set_lease(lease);
  request.add_success()->mutable_request_range()->set_key(key_);
  request.add_failure()->mutable_request_range()->set_key(key_);
  pb::TxnResponse response;
  const grpc::Status status =
      pb::KV::NewStub(to.channel)->Txn(context, request, &response);
  if (!status.ok()) return ToFailed(status);
  if (response.responses().empty()) return CallFailed{"an empty transaction"};
  return ToSeen(
      response.responses(response.responses_size() - 1).response_range());
}

// A stream for each renewal: the next one may go to another endpoint.
StoreAnswer EtcdStore::Renew(const Endpoint& to, LeaseId lease,
                             grpc::ClientContext* context) {
  const auto stub = pb::Lease::NewStub(to.channel);
  const auto stream = stub->LeaseKeepAlive(context);
  pb::LeaseKeepAliveRequest request;
  request.set_id(lease);
  pb::LeaseKeepAliveResponse response;
  const bool answered = stream->Write(request) && stream->Read(&response);
  if (answered) context->TryCancel();
  const grpc::Status status = stream->Finish();
  if (answered) return LeaseRenewed{std::chrono::seconds(response.ttl())};
  return status.ok() ? CallFailed{"it has not answered"} : ToFailed(status);
}

StoreAnswer EtcdStore::Revoke(const Endpoint& to, LeaseId lease,
                              grpc::ClientContext* context) {
  pb::LeaseRevokeRequest request;
  request.set_id(lease);
  pb::LeaseRevokeResponse response;
  const grpc::Status status =
      pb::Lease::NewStub(to.channel)->LeaseRevoke(context, request, &response);
  if (status.ok() || status.error_code() == grpc::StatusCode::NOT_FOUND) {
    return LeaseRevoked{};
  }
  return ToFailed(status);
}

void EtcdStore::Watch(const std::function<void()>& changed) {
  for (size_t i = 0;; i = (i + 1) % endpoints_.size()) {
    WatchAt(endpoints_[i], changed);
    if (!Pause()) return;
  }
}

void EtcdStore::WatchAt(const Endpoint& endpoint,
                        const std::function<void()>& changed) {
  Running running(this, false);
  // So that a member that has lost the others ends the stream.
  running.context()->AddMetadata("hasleader", "true");
  const auto stub = pb::Watch::NewStub(endpoint.channel);
  const auto stream = stub->Watch(running.context());
  pb::WatchRequest request;
  request.mutable_create_request()->set_key(key_);
  pb::WatchResponse response;
  // The first response says that the watch has begun; the key may have changed
  // before.
  if (stream->Write(request)) {
    while (stream->Read(&response) && !response.canceled()) changed();
  }
  running.context()->TryCancel();
  stream->Finish();
}

bool EtcdStore::Pause() {
  std::unique_lock lock(mutex_);
  return !stopped_changed_.wait_for(lock, kWatchPause,
                                    [this] { return stopped_; });
}

void EtcdStore::Stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  for (grpc::ClientContext* context : running_) context->TryCancel();
  stopped_changed_.notify_all();
}

}  // namespace maypole::coordinator
