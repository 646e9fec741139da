// A call to a server that is not a coordinator ends within its timeout, with
// one line, and does not kill maypolectl (this test does not ignore SIGPIPE,
// whose default action kills the process).
#include "client/ctl/connection.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "common/program/testing/fake_listener.h"

namespace maypole::ctl {
namespace {

using Caller = FakeListener::Caller;
using std::chrono::milliseconds;

void ExpectOneLine(FakeListener::Handler handler) {
  FakeListener listener(std::move(handler));
  ASSERT_NE(listener.port(), 0);
  CtlOptions options;
  options.coordinator = listener.address();
  options.timeout_s = 2;
  const auto connection = CoordinatorClient::Make(options);
  ASSERT_TRUE(connection.ok()) << connection.status();
  const auto start = std::chrono::steady_clock::now();
  const auto status = (*connection)->Status("").status();
  EXPECT_LT(std::chrono::steady_clock::now() - start,
            std::chrono::seconds(options.timeout_s) + kDiagnosisTime +
                milliseconds(2000));
  EXPECT_FALSE(status.ok());
  const std::string text(status.message());
  EXPECT_NE(text.find("coordinator " + options.coordinator), std::string::npos)
      << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  EXPECT_EQ(text.find("TLS"), std::string::npos) << text;
}

// A coordinator that cannot read the request may answer with a bare INTERNAL,
// for example.
TEST(CoordinatorClientTest, NothingIsSaidAfterAColon) {
  class Silent : public proto::Admin::Service {
    grpc::Status GetStatus(grpc::ServerContext*, const proto::StatusRequest*,
                           proto::StatusReply*) override {
      return grpc::Status(grpc::StatusCode::INTERNAL, "");
    }
  } service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  CtlOptions options;
  options.coordinator = "127.0.0.1:" + std::to_string(port);
  const auto connection = CoordinatorClient::Make(options);
  ASSERT_TRUE(connection.ok()) << connection.status();
  EXPECT_EQ((*connection)->Status("").status().message(),
            "coordinator " + options.coordinator +
                ": it answers INTERNAL and says nothing more");
}

TEST(CoordinatorClientTest, WhoHangsUpAtOnce) {
  for (int i = 0; i < 3; ++i) ExpectOneLine([](Caller&) {});
}

TEST(CoordinatorClientTest, WhoHangsUpOnTheFirstWord) {
  for (int i = 0; i < 3; ++i) ExpectOneLine([](Caller& c) { c.Read(); });
}

TEST(CoordinatorClientTest, WhoDribblesWhenAskedForTls) {
  ExpectOneLine([](Caller& c) {
    if (c.Read().substr(0, 1) != "\x16") return;
    std::string bytes = "\x16\x03\x03\x40";
    bytes += std::string("\0\x02\0\x3f\xfc\x03\x03", 7);
    for (int i = 0; i < 100 && c.Send(bytes); ++i) {
      bytes.assign(1, '\0');
      std::this_thread::sleep_for(milliseconds(300));
    }
  });
}

}  // namespace
}  // namespace maypole::ctl
