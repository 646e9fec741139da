// Runs on the kernel as it is, and under on_old_kernel without pidfds.
#include "common/system/process_end.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <thread>
#include <vector>

#include "common/system/fd.h"

#ifdef __SANITIZE_THREAD__
// A child here starts a thread, while this process may have several.
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }
#endif

namespace maypole {
namespace {

constexpr int kPatienceMs = 20000;
// Longer than the watcher's interval.
constexpr int kMomentMs = 3 * static_cast<int>(kLookInterval.count());

bool OnOldKernel() { return getenv("MAYPOLE_ON_OLD_KERNEL") != nullptr; }

bool Readable(const Fd& fd, int ms) {
  pollfd entry{fd.get(), POLLIN, 0};
  return poll(&entry, 1, ms) == 1;
}

size_t Threads() {
  const std::filesystem::directory_iterator threads("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(threads), end(threads)));
}

// The same when no thread of an earlier test's watch is about to end.
size_t StableThreads() {
  size_t before = 0;
  for (size_t now = Threads(); now != before; now = Threads()) {
    before = now;
    usleep(50000);
  }
  return before;
}

// A child that runs `body` and ends with status 3.
pid_t Start(const std::function<void()>& body) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  body();
  _exit(3);
}

void Sleep() {
  while (true) pause();
}

struct Pipe {
  Pipe() {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    reader = Fd(ends[0]);
    writer = Fd(ends[1]);
  }
  Fd reader;
  Fd writer;
};

// A process that is not a child of this one. It and its parent, a child, sleep.
pid_t StartGrandchild(pid_t* parent) {
  const Pipe pids;
  *parent = Start([&] {
    const pid_t pid = Start(Sleep);
    EXPECT_EQ(write(pids.writer.get(), &pid, sizeof(pid)), sizeof(pid));
    Sleep();
  });
  pid_t pid = -1;
  EXPECT_EQ(read(pids.reader.get(), &pid, sizeof(pid)), sizeof(pid));
  return pid;
}

int StatusOf(pid_t child) {
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

void Kill(pid_t child) {
  kill(child, SIGKILL);
  StatusOf(child);
}

TEST(OpenPidFd, IsInvalidOnOldKernelsOnly) {
  EXPECT_EQ(OpenPidFd(getpid()).valid(), !OnOldKernel());
  EXPECT_FALSE(OpenPidFd(0).valid());
}

TEST(WatchChild, TellsItsEndAndLeavesItToBeReaped) {
  Pipe go;
  const pid_t child = Start([&] {
    char byte;
    go.writer.Reset();
    (void)!read(go.reader.get(), &byte, 1);
  });
  Fd end;
  ASSERT_TRUE(WatchChild(child, &end).ok());
  EXPECT_FALSE(Readable(end, kMomentMs));
  go.writer.Reset();
  EXPECT_TRUE(Readable(end, kPatienceMs));
  const int status = StatusOf(child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3) << status;
}

TEST(WatchChild, ThatHasEndedAlready) {
  const pid_t child = Start([] {});
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT),
            0);
  Fd end;
  ASSERT_TRUE(WatchChild(child, &end).ok());
  EXPECT_TRUE(Readable(end, kPatienceMs));
  StatusOf(child);
}

// For example a worker of a DataLoader, or a daemon that a rank has started.
TEST(WatchChild, WhoseOwnChildHoldsAllItsDescriptors) {
  pid_t child;
  const pid_t grandchild = StartGrandchild(&child);
  Fd end;
  ASSERT_TRUE(WatchChild(child, &end).ok());
  kill(child, SIGKILL);
  EXPECT_TRUE(Readable(end, kPatienceMs));
  const int status = StatusOf(child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  EXPECT_EQ(kill(grandchild, SIGKILL), 0);
}

TEST(WatchChild, ThatIsReapedElsewhere) {
  const pid_t child = Start(Sleep);
  Fd end;
  ASSERT_TRUE(WatchChild(child, &end).ok());
  Kill(child);
  EXPECT_TRUE(Readable(end, kPatienceMs));
}

TEST(WatchChild, EachOfMany) {
  std::vector<pid_t> children;
  std::vector<Fd> ends;
  for (int i = 0; i < 20; ++i) {
    children.push_back(Start(Sleep));
    ASSERT_TRUE(WatchChild(children.back(), &ends.emplace_back()).ok());
  }
  for (size_t i = children.size(); i-- > 0;) {
    kill(children[i], SIGKILL);
    EXPECT_TRUE(Readable(ends[i], kPatienceMs));
    for (size_t k = 0; k < i; ++k) EXPECT_FALSE(Readable(ends[k], 0));
  }
  for (const pid_t child : children) StatusOf(child);
}

TEST(WatchProcess, TellsTheEndOfOneThatIsNoChild) {
  pid_t parent;
  const pid_t pid = StartGrandchild(&parent);
  const Fd end = WatchProcess(pid);
  ASSERT_TRUE(end.valid());
  EXPECT_FALSE(Readable(end, kMomentMs));
  kill(pid, SIGKILL);
  // Its parent does not reap it.
  EXPECT_TRUE(Readable(end, kPatienceMs));
  Kill(parent);
}

TEST(WatchProcess, ThatIsReaped) {
  const pid_t child = Start(Sleep);
  const Fd end = WatchProcess(child);
  ASSERT_TRUE(end.valid());
  Kill(child);
  EXPECT_TRUE(Readable(end, kPatienceMs));
}

TEST(WatchProcess, GoesOnWithoutItsFirstThread) {
  Pipe go;
  const pid_t child = Start([&] {
    std::thread([&] {
      char byte;
      go.writer.Reset();
      (void)!read(go.reader.get(), &byte, 1);
      _exit(0);
    }).detach();
    syscall(SYS_exit, 0);  // pthread_exit() would end the test's function
  });
  const Fd end = WatchProcess(child);
  ASSERT_TRUE(end.valid());
  EXPECT_FALSE(Readable(end, kMomentMs));
  go.writer.Reset();
  EXPECT_TRUE(Readable(end, kPatienceMs));
  StatusOf(child);
}

TEST(WatchProcess, OfWhichThereIsNone) {
  const pid_t child = Start([] {});
  StatusOf(child);
  EXPECT_FALSE(WatchProcess(child).valid());
  EXPECT_FALSE(WatchProcess(0).valid());
  EXPECT_FALSE(WatchProcess(-1).valid());
}

TEST(WatchProcess, NothingIsLeftOfAWatchThatIsGivenUp) {
  const size_t before = StableThreads();
  Fd end = WatchProcess(getppid());
  ASSERT_TRUE(end.valid());
  EXPECT_EQ(Threads(), before + (OnOldKernel() ? 1 : 0));
  end.Reset();
  for (int i = 0; i < 1000 && Threads() > before; ++i) usleep(10000);
  EXPECT_EQ(Threads(), before);
}

}  // namespace
}  // namespace maypole
