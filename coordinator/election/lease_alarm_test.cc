#include "coordinator/election/lease_alarm.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using std::chrono::milliseconds;

constexpr char kLine[] = "event=over\n";
constexpr int kStatus = 75;

// Runs `body` in a child with its stderr in a pipe. The child must not return
// from it.
struct Child {
  template <typename F>
  explicit Child(F&& body) {
    int fds[2];
    EXPECT_EQ(pipe(fds), 0);
    pid = fork();
    if (pid == 0) {
      dup2(fds[1], STDERR_FILENO);
      body(fds[0]);
      _exit(1);
    }
    close(fds[1]);
    error = fds[0];
  }
  int Wait() const {
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::string Error() const {
    std::string text(100, '\0');
    const ssize_t n = read(error, text.data(), text.size());
    text.resize(n < 0 ? 0 : static_cast<size_t>(n));
    return text;
  }
  pid_t pid = -1;
  int error = -1;
};

// With a system call, because tsan delivers signals only there.
void Spin() {
  for (;;) (void)!read(-1, nullptr, 0);
}

TEST(LeaseAlarm, EndsABusyProcessWithALineAndTheStatus) {
  const Child child([](int) {
    const auto alarm = LeaseAlarm::Make(kLine, kStatus);
    (*alarm)->Set(BootTime() + milliseconds(50));
    Spin();
  });
  EXPECT_EQ(child.Wait(), kStatus);
  EXPECT_EQ(child.Error(), kLine);
}

TEST(LeaseAlarm, CanBeMovedAndCleared) {
  const Child child([](int) {
    const auto alarm = LeaseAlarm::Make(kLine, kStatus);
    (*alarm)->Set(BootTime() + milliseconds(50));
    (*alarm)->Set(BootTime() + std::chrono::hours(1));
    usleep(100'000);
    (*alarm)->Set(BootTime() + milliseconds(50));
    (*alarm)->Clear();
    usleep(100'000);
    _exit(3);
  });
  EXPECT_EQ(child.Wait(), 3);
}

TEST(LeaseAlarm, AStderrThatNobodyReadsDoesNotKeepTheProcess) {
  const Child child([](int) {
    const auto alarm = LeaseAlarm::Make(kLine, kStatus);
    fcntl(STDERR_FILENO, F_SETFL, O_NONBLOCK);
    while (write(STDERR_FILENO, "x", 1) == 1) {
    }
    fcntl(STDERR_FILENO, F_SETFL, 0);
    (*alarm)->Set(BootTime() + milliseconds(50));
    Spin();
  });
  EXPECT_EQ(child.Wait(), kStatus);
}

TEST(LeaseAlarm, AStoppedProcessEndsWhenItIsContinued) {
  const Child child([](int ready) {
    const auto alarm = LeaseAlarm::Make(kLine, kStatus);
    (*alarm)->Set(BootTime() + milliseconds(200));
    static_cast<void>(ready);
    raise(SIGSTOP);
    [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, "it runs\n", 8);
    _exit(4);
  });
  int status = 0;
  ASSERT_EQ(waitpid(child.pid, &status, WUNTRACED), child.pid);
  ASSERT_TRUE(WIFSTOPPED(status));
  usleep(300'000);
  kill(child.pid, SIGCONT);
  EXPECT_EQ(child.Wait(), kStatus);
  EXPECT_EQ(child.Error(), kLine);
}

}  // namespace
}  // namespace maypole::coordinator
