// The operator's calls to a whole server in process, over loopback.
#include "coordinator/service/admin_service.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/program/secret.h"
#include "coordinator/core/testing/testing.h"
#include "coordinator/service/server.h"
#include "coordinator/service/testing/test_executor.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "proto/admin.grpc.pb.h"

namespace maypole::coordinator {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

bool IsStart(const proto::CoordinatorMessage& m) { return m.has_epoch_start(); }
bool IsEnd(const proto::CoordinatorMessage& m) { return m.has_epoch_end(); }

// Calls WatchEvents, and reads only on request.
class Watcher {
 public:
  Watcher(proto::Admin::Stub* stub, const proto::EventsRequest& request) {
    context_.AddMetadata(kSecretMetadata, "s");
    context_.set_deadline(std::chrono::system_clock::now() +
                          std::chrono::seconds(60));
    reader_ = stub->WatchEvents(&context_, request);
    reader_->WaitForInitialMetadata();
  }
  ~Watcher() { context_.TryCancel(); }
  // The next event of that kind; one without a number: the stream has ended.
  proto::Event Next(const std::string& kind) {
    proto::Event event;
    while (reader_->Read(&event)) {
      if (event.kind() == kind) return event;
    }
    return {};
  }
  std::vector<std::string> Rest() {
    std::vector<std::string> kinds;
    proto::Event event;
    while (reader_->Read(&event)) kinds.push_back(event.kind());
    return kinds;
  }
  grpc::Status Finish() { return reader_->Finish(); }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<proto::Event>> reader_;
};

class AdminServiceTest : public ::testing::Test {
 protected:
  AdminServiceTest() {
    ServerOptions options;
    options.secret = "s";
    auto server = Server::Start(options);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    // At most 64 KiB stay in flight to a follower that does not read.
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    stub_ = proto::Admin::NewStub(grpc::CreateCustomChannel(
        server_->listen().Text(), grpc::InsecureChannelCredentials(),
        arguments));
  }
  std::unique_ptr<TestExecutor> Executor(const std::string& job,
                                         const std::string& node) {
    auto e = std::make_unique<TestExecutor>(server_->listen().Text(), job, node,
                                            "s");
    return e;
  }
  // A job of one rank that runs.
  std::unique_ptr<TestExecutor> Running(const std::string& job,
                                        const std::string& node) {
    auto e = Executor(job, node);
    EXPECT_TRUE(e->Connect());
    e->Ready(1, {0});
    e->Await(IsStart);
    return e;
  }
  template <typename Request, typename Reply>
  grpc::Status Call(grpc::Status (proto::Admin::Stub::*method)(
                        grpc::ClientContext*, const Request&, Reply*),
                    const Request& request, Reply* reply) {
    grpc::ClientContext context;
    context.AddMetadata(kSecretMetadata, "s");
    return (stub_.get()->*method)(&context, request, reply);
  }
  grpc::Status Abort(const std::string& job, proto::AbortReply* reply) {
    proto::AbortRequest request;
    request.set_job(job);
    request.set_reason("too slow");
    request.set_who("root@head");
    return Call(&proto::Admin::Stub::AbortJob, request, reply);
  }
  grpc::Status Drain(const std::string& node, bool undo,
                     proto::DrainReply* reply) {
    proto::DrainRequest request;
    request.set_node(node);
    request.set_undo(undo);
    return Call(&proto::Admin::Stub::DrainNode, request, reply);
  }

  std::unique_ptr<Server> server_;
  std::unique_ptr<proto::Admin::Stub> stub_;
};

TEST_F(AdminServiceTest, EveryCallWantsTheSecret) {
  const auto denied = [](const grpc::Status& status) {
    return status.error_code() == grpc::StatusCode::UNAUTHENTICATED;
  };
  {
    grpc::ClientContext context;
    proto::StatusReply reply;
    EXPECT_TRUE(denied(stub_->GetStatus(&context, {}, &reply)));
  }
  {
    grpc::ClientContext context;
    proto::AbortReply reply;
    EXPECT_TRUE(denied(stub_->AbortJob(&context, {}, &reply)));
  }
  {
    grpc::ClientContext context;
    proto::DrainReply reply;
    EXPECT_TRUE(denied(stub_->DrainNode(&context, {}, &reply)));
  }
  grpc::ClientContext context;
  auto reader = stub_->WatchEvents(&context, {});
  proto::Event event;
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_TRUE(denied(reader->Finish()));
}

TEST_F(AdminServiceTest, StatusOfOneJobOrAll) {
  auto a = Running("a", "n0"), b = Running("b", "n0");
  proto::StatusReply reply;
  ASSERT_TRUE(Call(&proto::Admin::Stub::GetStatus, {}, &reply).ok());
  EXPECT_EQ(reply.jobs_size(), 2);
  EXPECT_GT(reply.uptime_seconds(), 0);
  EXPECT_LT(reply.uptime_seconds(), 60);
  EXPECT_GT(reply.protocol_version(), 0u);
  proto::StatusRequest request;
  request.set_job("b");
  ASSERT_TRUE(Call(&proto::Admin::Stub::GetStatus, request, &reply).ok());
  ASSERT_EQ(reply.jobs_size(), 1);
  EXPECT_EQ(reply.jobs(0).job(), "b");
  EXPECT_EQ(reply.jobs(0).nodes(0).address(), "127.0.0.1");
  EXPECT_TRUE(reply.jobs(0).nodes(0).connected());
  request.set_job("c");
  const grpc::Status status =
      Call(&proto::Admin::Stub::GetStatus, request, &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(status.error_message(), "there is no job \"c\"; there are: a, b");
}

TEST_F(AdminServiceTest, AbortReachesTheJobAndNoOther) {
  auto a = Running("a", "n0"), b = Running("b", "n0");
  proto::AbortReply reply;
  ASSERT_TRUE(Abort("a", &reply).ok());
  EXPECT_EQ(reply.ranks(), 1u);
  EXPECT_EQ(a->Await(IsEnd).epoch_end().message(),
            "the job was aborted by root@head: too slow");
  b->Send(Gone(1, 0, true));
  EXPECT_TRUE(b->Finish().ok());
  for (const auto& m : b->inbox()) EXPECT_FALSE(m.has_epoch_end());
  EXPECT_EQ(Abort("c", &reply).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(AdminServiceTest, ADrainedNodeIsRefusedUntilItIsUndone) {
  auto a = Running("a", "n0");
  proto::DrainReply reply;
  ASSERT_TRUE(Drain("n0", false, &reply).ok());
  ASSERT_EQ(reply.jobs_size(), 1);
  auto b = Executor("b", "n0");
  EXPECT_FALSE(b->Connect());
  EXPECT_THAT(b->refused().message(), HasSubstr("has been drained"));
  ASSERT_TRUE(Drain("n0", true, &reply).ok());
  EXPECT_TRUE(b->Connect());
}

TEST_F(AdminServiceTest, EventsThatHaveBeenAndThoseThatCome) {
  auto a = Running("a", "n0");
  Watcher past(stub_.get(), {});
  const std::vector<std::string> kinds = past.Rest();
  EXPECT_TRUE(past.Finish().ok());
  EXPECT_THAT(kinds, Contains("session_opened"));
  EXPECT_THAT(kinds, Contains("epoch_start"));

  proto::EventsRequest request;
  request.set_follow(true);
  request.set_job("b");
  Watcher watcher(stub_.get(), request);
  auto b = Running("b", "n0");
  const proto::Event start = watcher.Next("epoch_start");
  EXPECT_EQ(start.job(), "b");
  EXPECT_EQ(start.level(), "info");
  EXPECT_THAT(start.text(), HasSubstr("event=epoch_start job=b epoch=1"));
  const double now = std::chrono::duration<double>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count();
  EXPECT_NEAR(start.unix_seconds(), now, 60);
  a->Send(Gone(1, 0, false, "of another job"));
  a->Await(IsEnd);
  b->Send(Gone(1, 0, false, "was killed"));
  const proto::Event lost = watcher.Next("rank_lost");
  EXPECT_EQ(lost.level(), "warning");
  EXPECT_THAT(lost.text(), HasSubstr("rank=0 reason=\"was killed\""));
  server_->Shutdown();
  watcher.Rest();
  EXPECT_EQ(watcher.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(AdminServiceTest, GoesOnAfterANumber) {
  auto a = Running("a", "n0");
  proto::EventsRequest request;
  Watcher all(stub_.get(), request);
  const proto::Event start = all.Next("epoch_start");
  ASSERT_GT(start.number(), 1u);
  request.set_after(start.number() - 1);
  Watcher rest(stub_.get(), request);
  EXPECT_EQ(rest.Next("epoch_start").number(), start.number());
}

// The follower reads nothing while more events come than the ring and the
// connection can hold.
TEST_F(AdminServiceTest, AFollowerThatDoesNotReadHoldsUpNobody) {
  proto::EventsRequest request;
  request.set_follow(true);
  Watcher stuck(stub_.get(), request);
  proto::DrainReply reply;
  const std::string node(60, 'x');
  for (size_t i = 0; i < 3 * kMaxEvents; ++i) {
    ASSERT_TRUE(Drain(node, i % 2 == 1, &reply).ok());
  }
  auto a = Running("a", "n0");
  // Finally it is told that it has missed some events.
  EXPECT_THAT(stuck.Next("events_forgotten").text(), HasSubstr("count="));
  EXPECT_EQ(stuck.Next("epoch_start").job(), "a");
}

TEST_F(AdminServiceTest, FollowersHaveALimitAndLeaveRoomWhenTheyHangUp) {
  proto::EventsRequest request;
  request.set_follow(true);
  std::vector<std::unique_ptr<Watcher>> watchers;
  for (int i = 0; i < kMaxFollowers; ++i) {
    watchers.push_back(std::make_unique<Watcher>(stub_.get(), request));
  }
  Watcher more(stub_.get(), request);
  more.Rest();
  EXPECT_EQ(more.Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  watchers.clear();
  bool served = false;
  for (int i = 0; i < 100 && !served; ++i) {
    Watcher again(stub_.get(), {});
    again.Rest();
    served = again.Finish().ok();
    if (!served) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_TRUE(served);
}

}  // namespace
}  // namespace maypole::coordinator
