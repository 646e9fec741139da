#include "client/launcher/service/service_facts.h"

#include <sched.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "client/launcher/hosts/own_addresses.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::launcher {
namespace {

using ::testing::HasSubstr;

class Home : public ::testing::Test {
 protected:
  Home() {
    std::string pattern = ::testing::TempDir() + "/homeXXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~Home() override { std::filesystem::remove_all(path_); }

  std::string path_;
};

TEST_F(Home, TheSecretIsMadeOnceAndPrivate) {
  std::string first, second;
  ASSERT_TRUE(UserSecret(path_, &first).ok());
  EXPECT_EQ(first.size(), 64u);
  ASSERT_TRUE(UserSecret(path_, &second).ok());
  EXPECT_EQ(first, second);
  struct stat st;
  ASSERT_EQ(stat((path_ + "/.maypole/secret").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  // No other file remains.
  EXPECT_EQ(std::distance(
                std::filesystem::directory_iterator(path_ + "/.maypole"), {}),
            1);
}

TEST_F(Home, WhoeverMakesTheSecretAtOnceAllGetTheSame) {
  constexpr int kProcesses = 8;
  for (int i = 0; i < kProcesses; ++i) {
    if (fork() == 0) {
      std::string secret;
      const bool good = UserSecret(path_, &secret).ok();
      std::ofstream(path_ + "/got." + std::to_string(i)) << secret;
      _exit(good ? 0 : 1);
    }
  }
  for (int i = 0; i < kProcesses; ++i) {
    int status = 0;
    wait(&status);
    EXPECT_EQ(status, 0);
  }
  std::string secret;
  ASSERT_TRUE(UserSecret(path_, &secret).ok());
  for (int i = 0; i < kProcesses; ++i) {
    std::string got;
    std::ifstream(path_ + "/got." + std::to_string(i)) >> got;
    EXPECT_EQ(got, secret);
  }
}

TEST_F(Home, ASecretThatOthersMayReadIsRefused) {
  std::string secret;
  ASSERT_TRUE(UserSecret(path_, &secret).ok());
  ASSERT_EQ(chmod((path_ + "/.maypole/secret").c_str(), 0644), 0);
  EXPECT_THAT(UserSecret(path_, &secret).message(), HasSubstr("chmod 600"));
}

TEST_F(Home, WithoutAHomeATokenIsAskedFor) {
  std::string secret;
  EXPECT_THAT(UserSecret("", &secret).message(), HasSubstr("MAYPOLE_TOKEN"));
  EXPECT_THAT(UserSecret("/nonexistent", &secret).message(),
              HasSubstr("MAYPOLE_TOKEN"));
}

TEST(ResolveTest, LoopbackIsNoAddressForOthers) {
  EXPECT_EQ(ResolveForOthers({"10.1.2.3:5", "127.0.1.1:5", "[fd00::1]:5",
                              "[::1]:5", "localhost:5"}),
            (std::vector<std::string>{"10.1.2.3:5", "[fd00::1]:5"}));
  EXPECT_EQ(ResolveForOthers({"localhost:5"}), std::vector<std::string>());
  EXPECT_EQ(ResolveForOthers({"127.0.1.1:5"}), std::vector<std::string>());
}

TEST(ResolveTest, LoopbackAloneIsAMachineWithoutNetwork) {
  EXPECT_EQ(ResolveForOthers({"127.0.0.1:5"}),
            (std::vector<std::string>{"127.0.0.1:5"}));
}

TEST(FactsTest, WithoutAnyNetworkLoopbackIsTheAddress) {
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWNET) != 0) _exit(2);  // needs root
    ServiceFacts facts;
    const bool good = GatherServiceFacts("/nowhere", &facts).ok() &&
                      facts.addresses == std::vector<std::string>{"127.0.0.1"};
    _exit(good ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (status == 2 << 8) GTEST_SKIP() << "no network namespace: needs root";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace maypole::launcher
