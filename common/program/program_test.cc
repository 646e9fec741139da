// Arguments, addresses and the secret's file.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "common/program/address.h"
#include "common/program/arguments.h"
#include "common/program/secret_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

ABSL_FLAG(int, number, 3, "a number");
ABSL_FLAG(bool, loud, false, "a switch");

namespace maypole {
namespace {

using ::testing::HasSubstr;

absl::Status Check(std::vector<std::string> arguments) {
  std::vector<char*> argv = {const_cast<char*>("program")};
  for (std::string& a : arguments) argv.push_back(a.data());
  return CheckArguments(static_cast<int>(argv.size()), argv.data());
}

TEST(ArgumentsTest, TakesKnownFlags) {
  EXPECT_TRUE(Check({"--number=4", "-number", "5", "--loud", "--noloud"}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_number), 5);
}

TEST(ArgumentsTest, RefusesTheRestByName) {
  EXPECT_EQ(Check({"stray"}).message(), "'stray' is not a flag; see --help");
  EXPECT_EQ(Check({"--nosuch=1"}).message(),
            "there is no flag '--nosuch'; see --help");
  EXPECT_EQ(Check({"--nonumber"}).message(),
            "there is no flag '--nonumber'; see --help");
  EXPECT_EQ(Check({"--number"}).message(),
            "--number needs a value; see --help");
  EXPECT_THAT(std::string(Check({"--number=x"}).message()),
              HasSubstr("--number='x' is not a value"));
}

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
    return ReadSecretFile(path_);
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

TEST_F(SecretTest, NamesAFileThatIsNotThere) {
  const auto secret = ReadSecretFile("/nonexistent/secret");
  ASSERT_FALSE(secret.ok());
  EXPECT_THAT(std::string(secret.status().message()),
              HasSubstr("/nonexistent/secret: No such file"));
}

}  // namespace
}  // namespace maypole
