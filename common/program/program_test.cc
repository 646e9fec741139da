// Addresses and the secret's file.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/absl_status.h"
#include "common/program/address.h"
#include "common/program/secret_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole {
namespace {

using ::testing::HasSubstr;

TEST(AddressTest, Parses) {
  EXPECT_EQ(ParseAddress("--x", "127.0.0.1:80")->Text(), "127.0.0.1:80");
  EXPECT_EQ(ParseAddress("--x", "[::1]:0")->host, "[::1]");
  EXPECT_EQ(ParseAddress("--x", "host:65535")->port, 65535);
}

TEST(AddressTest, RefusesTheRestNamingTheFlag) {
  for (const char* bad : {"", "host", ":80", "host:", "host:65536", "host:-1",
                          "::1:80", "host:8o"}) {
    const auto address = ParseAddress("--listen", bad);
    ASSERT_FALSE(address.ok()) << bad;
    EXPECT_THAT(std::string(address.status().message()),
                HasSubstr("--listen="));
  }
}

TEST(AddressTest, KnowsLoopback) {
  EXPECT_TRUE(IsLoopback({"127.0.0.1", 1}));
  EXPECT_TRUE(IsLoopback({"localhost", 1}));
  EXPECT_TRUE(IsLoopback({"[::1]", 1}));
  EXPECT_TRUE(IsLoopbackHost("::1"));
  EXPECT_TRUE(IsLoopbackHost("127.0.1.1"));
  EXPECT_TRUE(IsLoopbackHost("::ffff:127.0.0.1"));
  EXPECT_FALSE(IsLoopbackHost("127.example"));
  EXPECT_FALSE(IsLoopbackHost("::"));
  EXPECT_FALSE(IsLoopbackHost("fd00::1"));
  EXPECT_FALSE(IsLoopbackHost(""));
  EXPECT_FALSE(IsLoopback({"0.0.0.0", 1}));
  EXPECT_FALSE(IsLoopback({"10.0.0.1", 1}));
}

class SecretTest : public ::testing::Test {
 protected:
  SecretTest() : path_(std::string(getenv("TEST_TMPDIR")) + "/secret") {}
  ~SecretTest() override { ::unlink(path_.c_str()); }
  absl::StatusOr<std::string> Read(const std::string& text,
                                   mode_t mode = 0600) {
    std::ofstream(path_, std::ios::trunc) << text;
    ::chmod(path_.c_str(), mode);
    return ReadFile(path_);
  }
  static absl::StatusOr<std::string> ReadFile(const std::string& path) {
    std::string secret;
    const Status s = ReadSecretFile(path, &secret);
    if (!s.ok()) return ToAbsl(s);
    return secret;
  }
  const std::string path_;
};

TEST_F(SecretTest, IsTheLineWithoutItsEnd) {
  EXPECT_EQ(*Read("abc def\n"), "abc def");
  EXPECT_EQ(*Read("abc\r\n"), "abc");
  EXPECT_EQ(*Read("abc"), "abc");
}

TEST_F(SecretTest, RefusesWhatIsNoSecret) {
  for (const std::string& bad :
       {std::string(), std::string("\n"), std::string("a\nb\n"),
        std::string("\x01"), std::string(kMaxSecretBytes + 1, 'x'),
        std::string(1 << 20, 'x')}) {
    const auto secret = Read(bad);
    ASSERT_FALSE(secret.ok());
    EXPECT_THAT(std::string(secret.status().message()), HasSubstr(path_));
  }
}

TEST_F(SecretTest, RefusesAFileThatOthersThanItsOwnerRead) {
  for (const mode_t mode : {0604, 0640, 0660, 0620}) {
    const auto secret = Read("abc\n", mode);
    ASSERT_FALSE(secret.ok()) << mode;
    EXPECT_EQ(std::string(secret.status().message()),
              "secret file " + path_ +
                  ": others than its owner may use it; chmod 600 " + path_);
  }
}

// For a FIFO the call used to wait silently for a writer.
TEST_F(SecretTest, RefusesWhatIsNoRegularFileAtOnce) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  for (const std::string& path :
       {path_, std::string("/dev/null"), std::string(getenv("TEST_TMPDIR"))}) {
    const auto secret = ReadFile(path);
    ASSERT_FALSE(secret.ok());
    EXPECT_EQ(std::string(secret.status().message()),
              "secret file " + path +
                  ": must be a regular file with one line of text");
  }
}

TEST_F(SecretTest, RefusesAFileOfSomebodyElse) {
  std::ofstream(path_) << "abc\n";
  ::chmod(path_.c_str(), 0600);
  if (::chown(path_.c_str(), 65534, 65534) != 0) {
    GTEST_SKIP()
        << "no right to give files away; see tests/security/security_test.py";
  }
  const auto secret = ReadFile(path_);
  ASSERT_FALSE(secret.ok());
  EXPECT_EQ(secret.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(secret.status().message()),
              HasSubstr("belongs to uid 65534"));
}

TEST_F(SecretTest, WarnsOfAShortOne) {
  EXPECT_THAT(SecretWarning("abc"), HasSubstr("has 3 characters"));
  EXPECT_THAT(SecretWarning(std::string(kGoodSecretBytes - 1, 'x')),
              HasSubstr("at least 16"));
  EXPECT_EQ(SecretWarning(std::string(kGoodSecretBytes, 'x')), "");
}

TEST_F(SecretTest, NamesAFileThatIsNotThere) {
  const auto secret = ReadFile("/nonexistent/secret");
  ASSERT_FALSE(secret.ok());
  EXPECT_THAT(std::string(secret.status().message()),
              HasSubstr("/nonexistent/secret: No such file"));
}

}  // namespace
}  // namespace maypole
