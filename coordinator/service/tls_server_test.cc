// The server with TLS, and which certificates allow which calls: the
// certificates are like those of deploy/make-certs.sh.
#include <cstdlib>
#include <memory>
#include <string>

#include "common/program/tls.h"
#include "coordinator/service/server.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "proto/admin.grpc.pb.h"

namespace maypole::coordinator {
namespace {

using ::testing::HasSubstr;

class TlsServerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = std::string(getenv("TEST_TMPDIR")) + "/certs";
    const std::string script = std::string(getenv("TEST_SRCDIR")) + "/" +
                               getenv("TEST_WORKSPACE") +
                               "/deploy/make-certs.sh";
    ASSERT_EQ(
        std::system((script + " '" + dir_ + "' 127.0.0.1 >/dev/null").c_str()),
        0)
        << "is openssl installed?";
  }
  static TlsOptions Tls(const std::string& name) {
    const auto tls = ReadTlsFiles(dir_ + "/ca.pem", dir_ + "/" + name + ".pem",
                                  dir_ + "/" + name + ".key");
    EXPECT_TRUE(tls.ok()) << tls.status();
    return *tls;
  }

  TlsServerTest() {
    ServerOptions options;
    options.tls = Tls("coordinator");
    auto server = Server::Start(options);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  grpc::Status AskStatus(const TlsOptions& tls) {
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    SetServerName(tls, &args);
    const auto stub = proto::Admin::NewStub(grpc::CreateCustomChannel(
        server_->listen().Text(), ClientCredentials(tls), args));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::seconds(20));
    proto::StatusReply reply;
    return stub->GetStatus(&context, {}, &reply);
  }
  std::string Diagnosis(const TlsOptions& tls) {
    return DiagnoseTls(server_->listen().Text(), tls);
  }

  static std::string dir_;
  std::unique_ptr<Server> server_;
};
std::string TlsServerTest::dir_;

TEST_F(TlsServerTest, AnOperatorMayAsk) {
  const grpc::Status s = AskStatus(Tls("admin"));
  EXPECT_TRUE(s.ok()) << s.error_message();
}

TEST_F(TlsServerTest, ANodeMayNot) {
  const grpc::Status s = AskStatus(Tls("node"));
  EXPECT_EQ(s.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(s.error_message(),
            "only a certificate with the name maypole-admin may do this, the "
            "caller's has the name \"maypole-node\"; give an operator's with "
            "--tls_cert and --tls_key");
}

// A node cannot play the coordinator: its certificate is for clients.
TEST_F(TlsServerTest, ANodeIsNoCoordinator) {
  server_.reset();
  ServerOptions options;
  options.tls = Tls("node");
  auto server = Server::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  TlsOptions admin = Tls("admin");
  EXPECT_EQ(AskStatus(admin).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(Diagnosis(admin), HasSubstr("its certificate is not accepted"));
}

TEST_F(TlsServerTest, WithoutTlsNobodyGetsThrough) {
  EXPECT_EQ(AskStatus({}).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Diagnosis({}),
            "it speaks TLS: give --tls_ca, --tls_cert and --tls_key");
}

TEST_F(TlsServerTest, TheServersNameMustFit) {
  TlsOptions tls = Tls("admin");
  tls.server_name = "elsewhere";
  EXPECT_EQ(AskStatus(tls).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Diagnosis(tls),
            "its certificate is for 127.0.0.1, not for 'elsewhere'; name the "
            "coordinator by one of these, or give one with --tls_server_name");
}

TEST_F(TlsServerTest, WhatFitsHasNoDiagnosis) {
  EXPECT_EQ(Diagnosis(Tls("node")), "");
  server_->Shutdown();
  EXPECT_EQ(Diagnosis(Tls("node")), "");  // gRPC says why
}

}  // namespace
}  // namespace maypole::coordinator
