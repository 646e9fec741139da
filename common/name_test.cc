#include "common/name.h"

#include <gtest/gtest.h>

#include <string>

namespace maypole {
namespace {

constexpr char kExpected[] =
    "--node must be 1 to 63 printable ASCII characters without spaces, quotes, "
    "slashes and backslashes";

std::string Refused(std::string_view name) {
  const Status s = CheckName("--node", name, 63);
  EXPECT_EQ(s.code(), Code::kInvalidArgument) << name;
  return s.message();
}

TEST(NameTest, WhatUsersCallTheirJobsAndNodes) {
  for (const char* good :
       {"job", "n0", "node-1.cluster.example.com", "res-net_5.0", "7",
        "slurm.4711.0.0", "torchrun.0123456789abcdef", "team:net@v2", "a+b=c",
        "-x", "...", "{net}", "a,b;c", "fd00::1%eth0", "#1", "50%", "~me",
        "!$&()*<>?[]^`|"}) {
    EXPECT_TRUE(CheckName("--node", good, 63).ok()) << good;
  }
  EXPECT_TRUE(CheckName("--node", std::string(63, 'x'), 63).ok());
}

TEST(NameTest, EachOtherByteIsRefused) {
  for (int c = 0; c < 256; ++c) {
    const bool good =
        c > ' ' && c < 127 && c != '"' && c != '\'' && c != '/' && c != '\\';
    const std::string name = {'a', static_cast<char>(c), 'b'};
    EXPECT_EQ(CheckName("--node", name, 63).ok(), good) << c;
    EXPECT_EQ(HasNameCharacters(name), good) << c;
  }
}

TEST(NameTest, OneMessageSaysWhatIsExpected) {
  const std::string expected = kExpected;
  EXPECT_EQ(Refused(""), expected + ", not ''");
  EXPECT_EQ(Refused("a b"), expected + ", not 'a b'");
  EXPECT_EQ(Refused(".."), expected + " (and neither '.' nor '..'), not '..'");
  EXPECT_EQ(Refused("."), expected + " (and neither '.' nor '..'), not '.'");
  EXPECT_EQ(Refused(std::string(64, 'x')),
            expected + ", not '" + std::string(64, 'x') + "' (64 characters)");
  EXPECT_EQ(
      Refused(std::string(5000, 'x')),
      expected + ", not '" + std::string(64, 'x') + "...' (5000 characters)");
}

// A refused name in the message cannot end the line or move the cursor.
TEST(NameTest, TheMessageIsOnePrintableLine) {
  const std::string expected(kExpected);
  EXPECT_EQ(Refused("a\nb\x1b[2J\x7f\xc2\x9b"),
            expected + ", not 'a?b?[2J" + std::string(3, '?') + "'");
  EXPECT_EQ(Refused(std::string_view("a\0b", 3)), expected + ", not 'a?b'");
}

TEST(NameTest, TheLimitIsTheCallers) {
  EXPECT_TRUE(CheckName("--job-name", std::string(54, 'x'), 54).ok());
  EXPECT_EQ(
      CheckName("--job-name", std::string(55, 'x'), 54).message().substr(0, 28),
      "--job-name must be 1 to 54 p");
}

}  // namespace
}  // namespace maypole
