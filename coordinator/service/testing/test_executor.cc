#include "coordinator/service/testing/test_executor.h"

#include <chrono>
#include <utility>

#include "common/limits.h"
#include "common/program/secret.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

constexpr std::chrono::seconds kPatience(30);

std::shared_ptr<grpc::Channel> NewChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(),
                                   arguments);
}

}  // namespace

TestExecutor::TestExecutor(const std::string& address, std::string job,
                           std::string node, std::string secret)
    : job_(std::move(job)),
      node_(std::move(node)),
      secret_(std::move(secret)),
      channel_(NewChannel(address)),
      stub_(proto::Coordinator::NewStub(channel_)) {}

TestExecutor::~TestExecutor() { Drop(); }

bool TestExecutor::Connect() {
  Drop();
  call_ = std::make_unique<Call>();
  if (!secret_.empty()) call_->context.AddMetadata(kSecretMetadata, secret_);
  call_->stream = stub_->Session(&call_->context);
  proto::ExecutorMessage hello;
  std::vector<proto::ExecutorMessage> again;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ended_ = welcome_ = false;
    hello.mutable_hello()->set_protocol_version(kProtocolVersion);
    hello.mutable_hello()->set_newest_version(kProtocolVersion);
    hello.mutable_hello()->set_job(job_);
    hello.mutable_hello()->set_node(node_);
    hello.mutable_hello()->set_session(session_);
    hello.mutable_hello()->set_incarnation(incarnation_);
    hello = link_.Bare(std::move(hello));
  }
  Stream* const stream = call_->stream.get();
  call_->reader = std::thread([this, stream] { Read(stream); });
  stream->Write(hello);
  std::unique_lock<std::mutex> lock(mutex_);
  EXPECT_TRUE(changed_.wait_for(lock, kPatience,
                                [this] { return welcome_ || ended_; }));
  if (!welcome_) return false;
  link_.Resend([&](const proto::ExecutorMessage& m) { again.push_back(m); });
  lock.unlock();
  for (const auto& m : again) stream->Write(m);
  return true;
}

void TestExecutor::Drop() {
  if (call_ == nullptr) return;
  call_->context.TryCancel();
  call_->reader.join();
  call_->stream->Finish();
  call_.reset();
}

void TestExecutor::Break() { Drop(); }

grpc::Status TestExecutor::Finish() {
  call_->stream->WritesDone();
  return AwaitEnd();
}

grpc::Status TestExecutor::AwaitEnd() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kPatience, [this] { return ended_; }));
    if (!ended_) call_->context.TryCancel();
  }
  call_->reader.join();
  const grpc::Status status = call_->stream->Finish();
  call_.reset();
  return status;
}

void TestExecutor::Ready(uint32_t size, const std::vector<uint32_t>& ranks) {
  proto::ExecutorMessage m;
  m.mutable_ranks_ready()->set_size(size);
  m.mutable_ranks_ready()->set_chunk_bytes(4096);
  m.mutable_ranks_ready()->mutable_ranks()->Assign(ranks.begin(), ranks.end());
  Send(std::move(m));
}

void TestExecutor::Send(proto::ExecutorMessage payload) {
  proto::ExecutorMessage numbered;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    numbered = *link_.Push(std::move(payload));
  }
  if (call_ != nullptr) call_->stream->Write(numbered);
}

TestExecutor::Message TestExecutor::Await(
    const std::function<bool(const Message&)>& fits) {
  std::unique_lock<std::mutex> lock(mutex_);
  Message found;
  const bool done = changed_.wait_for(lock, kPatience, [&] {
    for (const Message& m : inbox_) {
      if (!fits(m)) continue;
      found = m;
      return true;
    }
    return false;
  });
  EXPECT_TRUE(done) << "the message did not come to " << node_;
  return found;
}

std::vector<TestExecutor::Message> TestExecutor::inbox() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return inbox_;
}

proto::Refused TestExecutor::refused() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return refused_;
}

uint64_t TestExecutor::term() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return term_;
}

size_t TestExecutor::unacknowledged() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return link_.unacknowledged();
}

void TestExecutor::Read(Stream* stream) {
  Message m;
  while (stream->Read(&m)) {
    std::lock_guard<std::mutex> lock(mutex_);
    const Receipt receipt = link_.OnReceived(m.sequence(), m.acknowledged());
    if (m.has_welcome()) {
      welcome_ = true;
      session_ = m.welcome().session();
      incarnation_ = m.welcome().incarnation();
      term_ = m.welcome().term();
    }
    if (m.has_refused()) refused_ = m.refused();
    if (receipt == Receipt::kNew) inbox_.push_back(m);
    changed_.notify_all();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

}  // namespace maypole::coordinator
