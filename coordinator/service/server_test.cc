// The whole server in process, with real gRPC clients over loopback.
#include "coordinator/service/server.h"

#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/program/job_ticket.h"
#include "common/program/secret.h"
#include "coordinator/core/testing/testing.h"
#include "coordinator/service/testing/test_executor.h"
#include "coordinator/service/testing/test_http.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/sync_stream.h"
#include "gtest/gtest.h"
#include "proto/admin.grpc.pb.h"

namespace maypole::coordinator {
namespace {

using ::testing::HasSubstr;
using Message = proto::CoordinatorMessage;

bool IsStart(const Message& m) { return m.has_epoch_start(); }
bool IsEndpoints(const Message& m) { return m.has_endpoints(); }
bool IsExecute(const Message& m) { return m.has_execute(); }
bool IsEnd(const Message& m) { return m.has_epoch_end(); }

class ServerTest : public ::testing::Test {
 protected:
  void Start(const ServerOptions& options) {
    auto server = Server::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::unique_ptr<TestExecutor> Executor(const std::string& node,
                                         const std::string& secret = "") {
    return std::make_unique<TestExecutor>(server_->listen().Text(), "j", node,
                                          secret);
  }
  std::string Scrape() { return HttpGet(*server_->metrics(), "/metrics"); }
  // Polls the server until it returns this line.
  bool Eventually(const std::string& line) {
    for (int i = 0; i < 500; ++i) {
      if (Scrape().find(line) != std::string::npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return false;
  }
  static ServerOptions WithMetrics() {
    ServerOptions options;
    options.metrics = Address{"127.0.0.1", 0};
    return options;
  }
  Leadership leadership_;  // before the server, which uses it to its end
  std::unique_ptr<Server> server_;
};

// An unreadable message says nothing about versions if these are equal.
TEST_F(ServerTest, AMessageThatCannotBeReadBlamesVersionsOnlyIfTheyDiffer) {
  Start(ServerOptions());
  const auto channel = grpc::CreateChannel(server_->listen().Text(),
                                           grpc::InsecureChannelCredentials());
  const grpc::internal::RpcMethod method(
      "/maypole.proto.Coordinator/Session",
      grpc::internal::RpcMethod::BIDI_STREAMING, channel);
  const auto bytes = [](const std::string& text) {
    const grpc::Slice slice(text);
    return grpc::ByteBuffer(&slice, 1);
  };
  const auto ends_with = [&](uint32_t newest) {
    grpc::ClientContext context;
    using Stream = grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;
    const std::unique_ptr<Stream> stream(
        grpc::internal::ClientReaderWriterFactory<
            grpc::ByteBuffer, grpc::ByteBuffer>::Create(channel.get(), method,
                                                        &context));
    grpc::ByteBuffer welcome;
    if (newest != 0) {
      proto::ExecutorMessage hello;
      hello.mutable_hello()->set_protocol_version(kOldestProtocolVersion);
      hello.mutable_hello()->set_newest_version(newest);
      hello.mutable_hello()->set_job("j");
      hello.mutable_hello()->set_node(absl::StrCat("n", newest));
      stream->Write(bytes(hello.SerializeAsString()));
      EXPECT_TRUE(stream->Read(&welcome));
    }
    stream->Write(bytes("\xff\xff\xff"));
    while (stream->Read(&welcome)) {
    }
    const grpc::Status status = stream->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  EXPECT_EQ(ends_with(0),
            "a message of 3 bytes that is no ExecutorMessage, where a hello is "
            "expected; this coordinator speaks protocol version 1");
  EXPECT_EQ(ends_with(kProtocolVersion),
            "a message of 3 bytes that is no ExecutorMessage, although both "
            "sides speak protocol version 1; it was damaged on its way, or "
            "this is a fault of Maypole");
  EXPECT_EQ(ends_with(kProtocolVersion + 1),
            "a message of 3 bytes that is no ExecutorMessage; the executor "
            "speaks protocol versions 1 to 2, this coordinator protocol "
            "version 1: run the same version of Maypole on all nodes");
}

TEST_F(ServerTest, TwoNodesStartExchangeEndpointsAndRun) {
  Start(WithMetrics());
  auto a = Executor("n0"), b = Executor("n1");
  ASSERT_TRUE(a->Connect());
  ASSERT_TRUE(b->Connect());
  a->Ready(3, {0, 1});
  b->Ready(3, {2});
  EXPECT_EQ(a->Await(IsStart).epoch_start().node_index(), 0u);
  EXPECT_EQ(b->Await(IsStart).epoch_start().node_index(), 1u);

  proto::ExecutorMessage endpoint;
  endpoint.set_epoch(1);
  endpoint.mutable_endpoint()->add_addresses("");
  endpoint.mutable_endpoint()->add_addresses(std::string("a\0b", 3));
  a->Send(endpoint);
  endpoint.mutable_endpoint()->set_addresses(0, "b-for-a");
  endpoint.mutable_endpoint()->set_addresses(1, "");
  b->Send(endpoint);
  EXPECT_EQ(a->Await(IsEndpoints).endpoints().addresses(1), "b-for-a");
  EXPECT_EQ(b->Await(IsEndpoints).endpoints().addresses(0),
            std::string("a\0b", 3));

  a->Send(Present(1, {Allreduce("x", {0, 1}, {3})}));
  b->Send(Present(1, {Allreduce("x", {2}, {3})}));
  for (TestExecutor* e : {a.get(), b.get()}) {
    const Message m = e->Await(IsExecute);
    ASSERT_EQ(m.execute().runs_size(), 1);
    EXPECT_EQ(m.execute().runs(0).operations(0).identity().name(), "x");
  }
  // A run is counted after it was sent.
  for (const char* line :
       {"maypole_operations_total{kind=\"allreduce\"} 1",
        "maypole_operation_bytes_total{kind=\"allreduce\"} 12",
        "maypole_runs_total 1", "maypole_run_operations_count 1",
        "maypole_negotiation_seconds_count 1"}) {
    EXPECT_TRUE(Eventually(line)) << line;
  }
  const std::string metrics = Scrape();
  for (const char* node : {"n0", "n1"}) {
    EXPECT_THAT(metrics,
                HasSubstr(absl::StrCat("maypole_node_late_seconds_total{job=",
                                       "\"j\",node=\"", node, "\"} ")));
  }
  EXPECT_THAT(metrics, HasSubstr("process_resident_memory_bytes "));
  // Two sessions opened, two nodes ready, one epoch started.
  EXPECT_THAT(metrics, HasSubstr("maypole_events_total{level=\"info\"} 5"));
  EXPECT_THAT(metrics, HasSubstr("maypole_events_total{level=\"error\"} 0"));
  EXPECT_THAT(metrics, HasSubstr("maypole_jobs 1"));
  EXPECT_THAT(metrics, HasSubstr("maypole_nodes 2"));
  EXPECT_THAT(metrics, HasSubstr("maypole_ranks 3"));
  EXPECT_THAT(metrics, HasSubstr("maypole_pending_operations 0"));
  EXPECT_THAT(metrics, HasSubstr("maypole_build_info{version=\""));

  for (uint32_t rank : {0, 1}) a->Send(Gone(1, rank, true));
  b->Send(Gone(1, 2, true));
  EXPECT_TRUE(a->Finish().ok());
  EXPECT_TRUE(b->Finish().ok());
  EXPECT_TRUE(Eventually("maypole_jobs 0"));
}

TEST_F(ServerTest, ABrokenStreamIsResumedWithNothingLost) {
  Start(WithMetrics());
  auto a = Executor("n0"), b = Executor("n1");
  ASSERT_TRUE(a->Connect());
  ASSERT_TRUE(b->Connect());
  a->Ready(2, {0});
  b->Ready(2, {1});
  a->Await(IsStart);
  b->Await(IsStart);
  a->Break();
  a->Send(Present(1, {Allreduce("x", {0}, {3})}));  // kept
  b->Send(Present(1, {Allreduce("x", {1}, {3})}));
  ASSERT_TRUE(a->Connect());
  EXPECT_EQ(a->Await(IsExecute).execute().runs(0).run(), 1u);
  EXPECT_EQ(b->Await(IsExecute).execute().runs(0).run(), 1u);
  EXPECT_TRUE(Eventually("maypole_reconnects_total 1"));
  EXPECT_EQ(a->unacknowledged(), 0u);
}

TEST_F(ServerTest, AnExecutorThatStaysAwayEndsTheEpoch) {
  ServerOptions options = WithMetrics();
  options.config.resume_timeout = std::chrono::milliseconds(200);
  Start(options);
  auto a = Executor("n0"), b = Executor("n1");
  ASSERT_TRUE(a->Connect());
  ASSERT_TRUE(b->Connect());
  a->Ready(2, {0});
  b->Ready(2, {1});
  b->Await(IsStart);
  a->Break();
  const Message end = b->Await(IsEnd);
  EXPECT_EQ(end.epoch(), 1u);
  EXPECT_THAT(end.epoch_end().message(), HasSubstr("executor of node n0"));
  EXPECT_TRUE(Eventually("maypole_errors_total{kind=\"executor_lost\"} 1"));
  EXPECT_FALSE(a->Connect());
  EXPECT_THAT(a->refused().message(), HasSubstr("did not come back"));
  EXPECT_EQ(a->AwaitEnd().error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ServerTest, AStartThatTimesOutIsToldInTime) {
  ServerOptions options;
  options.config.start_timeout = std::chrono::milliseconds(100);
  Start(options);
  auto a = Executor("n0");
  ASSERT_TRUE(a->Connect());
  a->Ready(2, {0});
  EXPECT_THAT(a->Await(IsEnd).epoch_end().message(),
              HasSubstr("rank 1 of 2 has not called init()"));
}

TEST_F(ServerTest, TheSecretIsWanted) {
  ServerOptions options;
  options.secret = "open sesame";
  Start(options);
  auto none = Executor("n0");
  EXPECT_FALSE(none->Connect());
  grpc::Status status = none->AwaitEnd();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(status.error_message(), HasSubstr("--secret_file"));
  auto wrong = Executor("n0", "open sesamf");
  EXPECT_FALSE(wrong->Connect());
  status = wrong->AwaitEnd();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(status.error_message(), HasSubstr("not this coordinator's"));
  EXPECT_TRUE(Executor("n0", "open sesame")->Connect());
}

// Tickets are those of job "j", which Executor() joins.
TEST_F(ServerTest, ATicketIsEnoughForItsJobAndForNoOther) {
  ServerOptions options;
  options.secret = "open sesame";
  Start(options);
  EXPECT_TRUE(Executor("n0", JobTicket("open sesame", "j"))->Connect());
  auto stolen = Executor("n1", JobTicket("open sesame", "other"));
  EXPECT_FALSE(stolen->Connect());
  const grpc::Status status = stolen->AwaitEnd();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(status.error_message(),
              HasSubstr("the ticket of job 'other', not of job 'j'"));
  auto old = Executor("n1", JobTicket("open sesamf", "j"));
  EXPECT_FALSE(old->Connect());
  EXPECT_EQ(old->AwaitEnd().error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(ServerTest, OperatorsHaveASecretOfTheirOwn) {
  ServerOptions options;
  options.secret = "s";
  options.operator_secret = "o";
  Start(options);
  EXPECT_TRUE(Executor("n0", "s")->Connect());
  auto is_operator = Executor("n1", "o");
  EXPECT_FALSE(is_operator->Connect());
  EXPECT_EQ(is_operator->AwaitEnd().error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  const auto ask = [&](const std::string& shown) {
    auto stub = proto::Admin::NewStub(grpc::CreateChannel(
        server_->listen().Text(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.AddMetadata(kSecretMetadata, shown);
    proto::StatusReply reply;
    return stub->GetStatus(&context, {}, &reply).error_code();
  };
  EXPECT_EQ(ask("o"), grpc::StatusCode::OK);
  EXPECT_EQ(ask("s"), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(ask(JobTicket("s", "j")), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(ask("x"), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(ServerTest, ARefusalReachesTheExecutorAndEndsTheStream) {
  Start({});
  auto a = Executor("n0"), twin = Executor("n0");
  ASSERT_TRUE(a->Connect());
  EXPECT_FALSE(twin->Connect());
  EXPECT_THAT(twin->refused().message(), HasSubstr("already"));
  EXPECT_EQ(twin->AwaitEnd().error_code(), grpc::StatusCode::ALREADY_EXISTS);
}

TEST_F(ServerTest, TheStatusCallAnswersWithTheSecretOnly) {
  ServerOptions options;
  options.secret = "s";
  Start(options);
  auto a = Executor("n0", "s");
  ASSERT_TRUE(a->Connect());
  auto stub = proto::Admin::NewStub(grpc::CreateChannel(
      server_->listen().Text(), grpc::InsecureChannelCredentials()));
  proto::StatusReply reply;
  {
    grpc::ClientContext context;
    EXPECT_EQ(stub->GetStatus(&context, {}, &reply).error_code(),
              grpc::StatusCode::UNAUTHENTICATED);
  }
  grpc::ClientContext context;
  context.AddMetadata(kSecretMetadata, "s");
  ASSERT_TRUE(stub->GetStatus(&context, {}, &reply).ok());
  ASSERT_EQ(reply.jobs_size(), 1);
  EXPECT_EQ(reply.jobs(0).job(), "j");
  EXPECT_TRUE(reply.jobs(0).nodes(0).connected());
}

TEST_F(ServerTest, ShutdownTellsTheExecutors) {
  Start({});
  auto a = Executor("n0");
  ASSERT_TRUE(a->Connect());
  a->Ready(1, {0});
  a->Await(IsStart);
  server_->Shutdown();
  EXPECT_THAT(a->Await(IsEnd).epoch_end().message(), HasSubstr("stopped"));
  EXPECT_FALSE(a->AwaitEnd().ok());
}

TEST_F(ServerTest, OnlyALeaderServesExecutorsAndItsTermIsInTheWelcome) {
  ServerOptions options = WithMetrics();
  options.leadership = &leadership_;
  Start(options);
  leadership_.Follow({"other:4001", 6});
  auto a = Executor("n0");
  EXPECT_FALSE(a->Connect());
  EXPECT_EQ(a->refused().message(), "");  // it may try again
  const grpc::Status status = a->AwaitEnd();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("other:4001"));
  EXPECT_TRUE(Eventually("maypole_coordinator_leader 0"));

  leadership_.Begin(7, BootTime() + std::chrono::hours(1));
  ASSERT_TRUE(a->Connect());
  EXPECT_EQ(a->term(), 7u);
  EXPECT_TRUE(Eventually("maypole_coordinator_leader 1"));
  EXPECT_TRUE(Eventually("maypole_coordinator_term 7"));
}

TEST_F(ServerTest, ALeaderWritesNothingAfterTheEndOfItsLease) {
  ServerOptions options;
  options.leadership = &leadership_;
  Start(options);
  leadership_.Begin(7, BootTime() + std::chrono::hours(1));
  auto a = Executor("n0"), b = Executor("n1");
  ASSERT_TRUE(a->Connect());
  ASSERT_TRUE(b->Connect());
  a->Ready(2, {0});
  leadership_.Prolong(BootTime());  // it ends now
  b->Ready(2, {1});
  server_->Shutdown();
  EXPECT_FALSE(a->AwaitEnd().ok());
  EXPECT_FALSE(b->AwaitEnd().ok());
  for (const TestExecutor* e : {a.get(), b.get()}) {
    for (const Message& m : e->inbox()) {
      EXPECT_FALSE(IsStart(m) || IsEnd(m)) << m.ShortDebugString();
    }
  }
}

TEST_F(ServerTest, APortInUseIsAClearError) {
  Start(WithMetrics());
  ServerOptions options;
  options.listen = server_->listen();
  auto second = Server::Start(options);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("Address already in use"));
  options.listen = {"127.0.0.1", 0};
  options.metrics = server_->metrics();
  second = Server::Start(options);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("Address already in use"));
}

}  // namespace
}  // namespace maypole::coordinator
