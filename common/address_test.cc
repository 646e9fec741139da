#include "common/address.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <cstring>
#include <string>

namespace maypole {
namespace {

TEST(AddressTest, SplitsAndJoins) {
  struct Row {
    const char* text;
    const char* host;
    int port;
  };
  for (const Row& row :
       {Row{"127.0.0.1:80", "127.0.0.1", 80},
        Row{"head.example.com:0", "head.example.com", 0},
        Row{"n-1:65535", "n-1", 65535}, Row{"[::1]:4001", "::1", 4001},
        Row{"[fe80::1%eth0]:1", "fe80::1%eth0", 1}}) {
    HostPort at;
    ASSERT_TRUE(SplitHostPort(row.text, &at)) << row.text;
    EXPECT_EQ(at.host, row.host);
    EXPECT_EQ(at.port, row.port);
    EXPECT_EQ(JoinHostPort(at.host, at.port), row.text);
  }
}

TEST(AddressTest, RefusesWhatIsNotHostAndPort) {
  for (const char* bad :
       {"",        ":",          "host",    ":80",
        "host:",   "host:65536", "host:-1", "host:+1",
        "host: 1", "host:1 ",    "host:8o", "host:99999999999999999999",
        "::1:80",  "fd00::1",    "[]:80",   "[:80",
        "]:80",    "[::1]80",    "[::1]",   "[::1:80",
        "::1]:80", "a[b]:80",    "[a]b:80"}) {
    HostPort at{.host = "unchanged", .port = 7};
    EXPECT_FALSE(SplitHostPort(bad, &at)) << bad;
    EXPECT_EQ(JoinHostPort(at.host, at.port), "unchanged:7");
  }
}

TEST(AddressTest, Brackets) {
  EXPECT_EQ(WithoutBrackets("[::1]"), "::1");
  EXPECT_EQ(WithoutBrackets("::1"), "::1");
  EXPECT_EQ(WithoutBrackets("host"), "host");
  EXPECT_EQ(WithoutBrackets("["), "[");
  EXPECT_EQ(WithoutBrackets(""), "");
}

TEST(AddressTest, KnowsAnAddressFromAName) {
  for (const char* address : {"127.0.0.1", "0.0.0.0", "::", "fd00::7",
                              "fe80::1%eth0", "::ffff:10.0.0.7"}) {
    EXPECT_TRUE(IsNumericHost(address)) << address;
  }
  for (const char* name : {"", "localhost", "127.1", "1", "10.0.0.256", "[::1]",
                           "fd00::7/64", "10.0.0.1 "}) {
    EXPECT_FALSE(IsNumericHost(name)) << name;
  }
  EXPECT_FALSE(IsNumericHost(std::string("::1\0x", 5)));
}

TEST(AddressTest, KnowsLoopback) {
  for (const char* host : {"127.0.0.1", "127.0.1.1", "::1", "[::1]",
                           "localhost", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(IsLoopbackHost(host)) << host;
  }
  for (const char* host : {"", "127.example", "::", "fd00::1", "0.0.0.0",
                           "10.0.0.1", "::ffff:10.0.0.1", "128.0.0.1"}) {
    EXPECT_FALSE(IsLoopbackHost(host)) << host;
  }
}

// IsLoopback() returns the same for a socket address as for its text.
TEST(AddressTest, SocketAddresses) {
  for (const char* host : {"127.0.0.1", "127.9.9.9", "::1", "10.0.0.1",
                           "fd00::1", "0.0.0.0", "::", "::ffff:127.0.0.1"}) {
    const Addresses found = Resolve(host, 80, AI_NUMERICHOST);
    ASSERT_NE(found, nullptr) << host;
    EXPECT_EQ(NumericHost(found->ai_addr), host);
    EXPECT_EQ(IsLoopback(found->ai_addr), IsLoopbackHost(host)) << host;
  }
  EXPECT_EQ(NumericHost(nullptr), "");
  sockaddr other{};
  other.sa_family = AF_UNIX;
  EXPECT_EQ(NumericHost(&other), "");
  EXPECT_FALSE(IsLoopback(&other));
}

TEST(AddressTest, ResolvesOrSaysWhyNot) {
  int error = -1;
  const Addresses found = Resolve("127.0.0.1", 4001, 0, &error);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(error, 0);
  EXPECT_EQ(found->ai_socktype, SOCK_STREAM);
  sockaddr_in v4;
  std::memcpy(&v4, found->ai_addr, sizeof(v4));
  EXPECT_EQ(ntohs(v4.sin_port), 4001);
  EXPECT_EQ(Resolve("head", 1, AI_NUMERICHOST, &error), nullptr);
  EXPECT_EQ(error, EAI_NONAME);
  EXPECT_EQ(Resolve("head", 1, AI_NUMERICHOST), nullptr);
}

}  // namespace
}  // namespace maypole
