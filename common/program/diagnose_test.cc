// DiagnoseTls against any program that may listen at a coordinator's port: it
// returns in time, does not crash, and reports only what it can know.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "common/program/testing/fake_listener.h"
#include "common/program/tls.h"

namespace maypole {
namespace {

using Caller = FakeListener::Caller;
using std::chrono::milliseconds;

constexpr char kNoTls[] =
    "it does not speak TLS: start it with --tls_ca, --tls_cert and --tls_key, "
    "or leave them out here";
// Allows for a busy machine; a listener that dribbles would block the call for
// minutes.
constexpr milliseconds kMost = kDiagnosisTime + milliseconds(1500);

// TLS is on; no listener in this test gets as far as reading the certificate.
TlsOptions On() { return {.ca = "x", .cert = "x", .key = "x"}; }

void ExpectSays(FakeListener::Handler handler, const std::string& with_tls,
                const std::string& without = "") {
  FakeListener listener(std::move(handler));
  ASSERT_NE(listener.port(), 0);
  for (const bool tls : {true, false}) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(DiagnoseTls(listener.address(), tls ? On() : TlsOptions()),
              tls ? with_tls : without);
    EXPECT_LT(std::chrono::steady_clock::now() - start, kMost);
  }
}

TEST(DiagnoseTest, WhoSaysNothingTellsNothing) {
  ExpectSays([](Caller& c) { c.Wait(); }, "");
}

TEST(DiagnoseTest, WhoHangsUpAtOnceTellsNothing) {
  for (int i = 0; i < 20; ++i) ExpectSays([](Caller&) {}, "");
}

TEST(DiagnoseTest, WhoHangsUpOnTheHelloTellsNothing) {
  ExpectSays([](Caller& c) { c.Read(); }, "");
}

// Sends the head of a record of 16 KiB, and then single bytes slowly.
TEST(DiagnoseTest, WhoDribblesHoldsNobody) {
  ExpectSays(
      [](Caller& c) {
        c.Read();
        std::string bytes = "\x16\x03\x03\x40";
        bytes += std::string("\0\x02\0\x3f\xfc\x03\x03", 7);
        for (int i = 0; i < 100 && c.Send(bytes); ++i) {
          bytes.assign(1, '\0');
          std::this_thread::sleep_for(milliseconds(300));
        }
      },
      "");
}

// The first bytes of a gRPC server without TLS, and of an HTTP/1 server.
TEST(DiagnoseTest, WhoSpeaksSomethingElseIsSaid) {
  for (const std::string& words :
       {std::string("\0\0\x06\x04\0\0\0\0\0\0\x05\0\0\x40\0", 15),
        std::string("HTTP/1.1 400 Bad Request\r\n\r\n")}) {
    ExpectSays(
        [&](Caller& c) {
          c.Send(words);
          c.Wait();
        },
        kNoTls);
  }
}

TEST(DiagnoseTest, AnAlertIsTls) {
  FakeListener listener([](Caller& c) {
    c.Read();
    c.Send(std::string("\x15\x03\x03\0\x02\x02\x28", 7));
    c.Wait();
  });
  const std::string refused = DiagnoseTls(listener.address(), On());
  EXPECT_EQ(refused.find("it does not accept this side's certificate ("), 0u)
      << refused;
  // OpenSSL's words for it, which change.
  EXPECT_NE(refused.find("alert handshake failure"), std::string::npos)
      << refused;
  EXPECT_EQ(DiagnoseTls(listener.address(), {}),
            "it speaks TLS: give --tls_ca, --tls_cert and --tls_key");
}

TEST(DiagnoseTest, NamesAreLookedUp) {
  FakeListener listener([](Caller& c) {
    c.Send("HTTP/1.1 400 Bad Request\r\n\r\n");
    c.Wait();
  });
  EXPECT_EQ(DiagnoseTls("localhost:" + std::to_string(listener.port()), On()),
            kNoTls);
}

TEST(DiagnoseTest, NobodyThere) {
  int port = 0;
  {
    port = FakeListener([](Caller&) {}).port();
  }
  EXPECT_EQ(DiagnoseTls("127.0.0.1:" + std::to_string(port), On()), "");
  EXPECT_EQ(DiagnoseTls("name.invalid:1", On()), "");
}

}  // namespace
}  // namespace maypole
