// fork() while another thread waits in maypole_init().
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>

#include "client/maypole.h"
#include "common/wire/unix_socket.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole {
namespace {

using ::testing::HasSubstr;

constexpr int kPatienceMs = 20000;

class ForkTest : public ::testing::Test {
 protected:
  ForkTest() {
    std::string pattern = "/tmp/mforkXXXXXX";
    directory_ = mkdtemp(pattern.data());
    const std::string agent = directory_ + "/agent";
    EXPECT_TRUE(ListenUnix(agent, 0600, &listener_).ok());
    for (const auto& [name, value] :
         std::initializer_list<std::pair<const char*, std::string>>{
             {"MAYPOLE_RANK", "0"},
             {"MAYPOLE_SIZE", "2"},
             {"MAYPOLE_LOCAL_RANK", "0"},
             {"MAYPOLE_LOCAL_SIZE", "2"},
             {"MAYPOLE_JOB", "fork"},
             {"MAYPOLE_TOKEN", "token"},
             {"MAYPOLE_AGENT", agent}}) {
      setenv(name, value.c_str(), 1);
    }
  }
  ~ForkTest() override { std::filesystem::remove_all(directory_); }

  std::string directory_;
  Fd listener_;
};

// The child ends without returning, so that gtest does not continue in it.
[[noreturn]] void Child(int told) {
  int failures = 0;
  if (maypole_init() != MAYPOLE_FAILED_PRECONDITION) failures |= 1;
  if (std::string(maypole_last_error()).find("was forked") ==
      std::string::npos) {
    failures |= 2;
  }
  char byte;
  (void)!read(told, &byte, 1);  // lives until the parent closes the pipe
  _exit(failures);
}

TEST_F(ForkTest, DoesNotWaitForAJoinAndTheChildHoldsNothingOfIt) {
  maypole_status status = MAYPOLE_OK;
  std::string error;
  std::thread joiner([&] {
    status = maypole_init();
    error = maypole_last_error();
  });
  Fd agent;
  pollfd waiting{listener_.get(), POLLIN, 0};
  ASSERT_EQ(poll(&waiting, 1, kPatienceMs), 1);
  ASSERT_TRUE(AcceptUnix(listener_.get(), &agent).ok());
  ASSERT_TRUE(agent.valid());
  Received hello;
  ASSERT_TRUE(ReceiveMessage(agent.get(), 65536, kPatienceMs, &hello).ok());
  ASSERT_FALSE(hello.data.empty());

  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();  // used to wait for the join, which waited for us
  ASSERT_GE(child, 0);
  if (child == 0) {
    close(ends[1]);
    Child(ends[0]);
  }
  close(ends[0]);
  // The join ends because the answer is invalid. The connection must end too,
  // although the child lives.
  EXPECT_TRUE(SendMessage(agent.get(), "?", 1).ok());
  joiner.join();
  EXPECT_NE(status, MAYPOLE_OK);
  EXPECT_THAT(error, HasSubstr("agent"));
  Received end;
  const Status closed = ReceiveMessage(agent.get(), 65536, kPatienceMs, &end);
  EXPECT_TRUE(closed.ok()) << closed.message();
  EXPECT_TRUE(end.data.empty());
  close(ends[1]);
  int wait_status = 0;
  ASSERT_EQ(waitpid(child, &wait_status, 0), child);
  EXPECT_EQ(wait_status, 0);
}

}  // namespace
}  // namespace maypole
