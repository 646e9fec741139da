#include "common/system/resource_limits.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <map>
#include <string>
#include <system_error>
#include <thread>

#include "common/system/spawn.h"

namespace maypole {
namespace {

constexpr char kNames[] = "the limit of processes and threads of ";

class LimitBehindTest : public testing::Test {
 protected:
  std::string For(Needs needs) {
    facts_.read = [this](const std::string& path) {
      const auto it = files_.find(path);
      return it == files_.end() ? std::nullopt : std::optional(it->second);
    };
    return LimitBehind(needs, facts_);
  }

  LimitFacts facts_;
  std::map<std::string, std::string> files_;
};

TEST_F(LimitBehindTest, NothingIsSaidOfWhatIsNotKnown) {
  EXPECT_EQ(For(Needs::kThread), "");
  EXPECT_EQ(For(Needs::kProcess), "");
  EXPECT_EQ(For(Needs::kMemory), "");
}

TEST_F(LimitBehindTest, ALimitOfMemoryGoesFirst) {
  facts_.address_space = 1 << 30;
  facts_.user_processes = 50;
  facts_.memory_fits = false;
  for (const Needs needs : {Needs::kThread, Needs::kProcess, Needs::kMemory}) {
    EXPECT_EQ(For(needs),
              "the limit of this process's address space is "
              "1073741824 bytes (ulimit -v)");
  }
  facts_.memory_fits = true;
  EXPECT_EQ(For(Needs::kThread),
            std::string(kNames) + "this user is 50 (ulimit -u)");
  EXPECT_EQ(For(Needs::kMemory), "");
}

TEST_F(LimitBehindTest, AFullCgroupOnTheWayUpIsNamed) {
  facts_.user_processes = 50;
  files_["/proc/self/cgroup"] = "0::/batch/job7\n";
  files_["/sys/fs/cgroup/batch/job7/pids.max"] = "max\n";
  files_["/sys/fs/cgroup/batch/job7/pids.current"] = "9\n";
  files_["/sys/fs/cgroup/batch/pids.max"] = "64\n";
  files_["/sys/fs/cgroup/batch/pids.current"] = "64\n";
  EXPECT_EQ(
      For(Needs::kThread),
      std::string(kNames) + "the cgroup (/sys/fs/cgroup/batch/pids.max) is 64");
  files_["/sys/fs/cgroup/batch/pids.current"] = "63\n";
  EXPECT_EQ(For(Needs::kThread),
            std::string(kNames) + "this user is 50 (ulimit -u)");
  // A container sees its own as the root.
  files_["/sys/fs/cgroup/pids.max"] = "32\n";
  files_["/sys/fs/cgroup/pids.current"] = "32\n";
  EXPECT_EQ(For(Needs::kProcess),
            std::string(kNames) + "the cgroup (/sys/fs/cgroup/pids.max) is 32");
}

TEST_F(LimitBehindTest, CgroupsOfVersionOneAreRead) {
  files_["/proc/self/cgroup"] = "7:cpu,cpuacct:/a\n5:pids:/b\n";
  files_["/sys/fs/cgroup/pids/b/pids.max"] = "10\n";
  files_["/sys/fs/cgroup/pids/b/pids.current"] = "10\n";
  EXPECT_EQ(For(Needs::kProcess),
            std::string(kNames) +
                "the cgroup (/sys/fs/cgroup/pids/b/pids.max) is 10");
}

TEST_F(LimitBehindTest, AFullMachineIsNamed) {
  facts_.user_processes = 50;
  files_["/proc/loadavg"] = "0.1 0.2 0.3 2/32600 1234\n";
  files_["/proc/sys/kernel/threads-max"] = "100000\n";
  files_["/proc/sys/kernel/pid_max"] = "32768\n";
  EXPECT_EQ(For(Needs::kThread),
            "the machine's limit of processes and threads "
            "(/proc/sys/kernel/pid_max) is 32768");
}

TEST(ResourceStatusTest, OtherErrorsAreAsErrnoSaysThem) {
  EXPECT_EQ(ResourceStatus(EACCES, Needs::kProcess, "fork").message(),
            ErrnoStatus(EACCES, "fork").message());
}

// Runs `body` in a child, because a limit cannot be raised again. 0 if `body`
// succeeded.
int InChild(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = -1;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

// The text of the error of a thread that cannot be started.
std::string TextOfAThread() {
  try {
    std::thread([] {}).join();
  } catch (const std::system_error& e) {
    return ResourceStatus(e.code().value(), Needs::kThread, "thread").message();
  }
  return "started";
}

int Report(const std::string& text, const std::string& want) {
  if (text.find(want) != std::string::npos) return 0;
  fprintf(stderr, "'%s' has no '%s'\n", text.c_str(), want.c_str());
  return 2;
}

TEST(ResourceStatusTest, AThreadBeyondTheUsersLimit) {
  EXPECT_EQ(InChild([] {
              // Root has no such limit.
              if (geteuid() == 0 && setuid(65534) != 0) return 1;
              const rlimit none{0, 0};
              if (setrlimit(RLIMIT_NPROC, &none) != 0) return 1;
              return Report(TextOfAThread(),
                            "Resource temporarily unavailable: the limit of "
                            "processes and threads of this user is 0");
            }),
            0);
}

TEST(ResourceStatusTest, AProcessBeyondTheUsersLimit) {
  EXPECT_EQ(InChild([] {
              if (geteuid() == 0 && setuid(65534) != 0) return 1;
              const rlimit none{0, 0};
              if (setrlimit(RLIMIT_NPROC, &none) != 0) return 1;
              Child child;
              const Status s = Spawn(
                  {.program = "/bin/true", .arguments = {"true"}}, &child);
              return Report(s.message(),
                            "Resource temporarily unavailable: the limit of "
                            "processes and threads of this user is 0");
            }),
            0);
}

// Sanitizers need address space themselves.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(ResourceStatusTest, AThreadWithoutAddressSpaceForItsStack) {
  EXPECT_EQ(InChild([] {
              // Less than what is mapped: nothing more fits.
              const rlimit tight{1 << 20, 1 << 20};
              if (setrlimit(RLIMIT_AS, &tight) != 0) return 1;
              return Report(TextOfAThread(),
                            "the limit of this process's address space is "
                            "1048576 bytes (ulimit -v)");
            }),
            0);
}
#endif

}  // namespace
}  // namespace maypole
