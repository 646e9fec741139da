#include "client/launcher/process/process.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

namespace maypole::launcher {
namespace {

using std::chrono::milliseconds;

// Forks a process, which forks the next, and so on; each is the others' only
// relative. Returns when the last one runs. All have `ready` open.
void StartChain(int length, int ready) {
  const pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid > 0) return;
  signal(SIGTERM, SIG_IGN);
  for (int i = 1; i < length && fork() == 0; ++i) {
  }
  if (write(ready, "x", 1) != 1) _exit(1);
  while (true) pause();
}

TEST(KillDescendants, ALimitCountsFromTheLastProcessThatWasFound) {
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  constexpr int kLength = 120;  // each takes a round of 2 ms or more
  StartChain(kLength, ends[1]);
  close(ends[1]);
  char byte;
  for (int i = 0; i < kLength; ++i) ASSERT_EQ(read(ends[0], &byte, 1), 1);
  ASSERT_TRUE(KillDescendants({}, milliseconds(200)).empty());
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "somebody is left";
  EXPECT_EQ(read(ends[0], &byte, 1), 0) << "somebody lives";
  close(ends[0]);
}

// /proc shows the process as dead, but another of its threads runs, to which
// its child belongs.
TEST(KillDescendants, AProcessWithoutItsFirstThread) {
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    std::thread([&] {
      fork();
      if (write(ends[1], "x", 1) != 1) _exit(1);
      while (true) pause();
    }).detach();
    syscall(SYS_exit, 0);  // of this thread alone
  }
  close(ends[1]);
  char byte;
  for (int i = 0; i < 2; ++i) ASSERT_EQ(read(ends[0], &byte, 1), 1);
  ASSERT_TRUE(KillDescendants({}, milliseconds(200)).empty());
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "somebody is left";
  EXPECT_EQ(read(ends[0], &byte, 1), 0) << "somebody lives";
  close(ends[0]);
}

TEST(KillDescendants, SparesWhatIsToBeKept) {
  const pid_t kept = fork();
  if (kept == 0) {
    while (true) pause();
  }
  EXPECT_TRUE(KillDescendants({kept}, milliseconds(200)).empty());
  EXPECT_EQ(waitpid(kept, nullptr, WNOHANG), 0);
  kill(kept, SIGKILL);
  EXPECT_EQ(waitpid(kept, nullptr, 0), kept);
}

}  // namespace
}  // namespace maypole::launcher
