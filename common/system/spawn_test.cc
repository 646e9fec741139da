#include "common/system/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace maypole {
namespace {

constexpr int kPatienceMs = 20000;

struct Pipe {
  Pipe() {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    reader = Fd(ends[0]);
    writer = Fd(ends[1]);
  }
  // Until all writers have closed.
  std::string ReadAll() {
    writer.Reset();
    std::string text;
    char buffer[4096];
    ssize_t n;
    while ((n = read(reader.get(), buffer, sizeof(buffer))) > 0) {
      text.append(buffer, static_cast<size_t>(n));
    }
    return text;
  }

  Fd reader;
  Fd writer;
};

int WaitFor(const Child& child) {
  pollfd entry{child.end.get(), POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, kPatienceMs), 1) << "Child::end tells of its end";
  int status = -1;
  EXPECT_EQ(waitpid(child.pid, &status, 0), child.pid);
  return status;
}

SpawnOptions Shell(const std::string& script) {
  SpawnOptions options;
  options.program = "/bin/sh";
  options.arguments = {"sh", "-c", script};
  return options;
}

// What it prints; it must end with status 0.
std::string Output(SpawnOptions options) {
  Pipe out;
  options.descriptors.push_back({.fd = out.writer.get(), .number = 1});
  Child child;
  const Status s = Spawn(options, &child);
  EXPECT_TRUE(s.ok()) << s.message();
  if (!s.ok()) return "";
  const std::string text = out.ReadAll();
  EXPECT_EQ(WaitFor(child), 0);
  return text;
}

TEST(Spawn, RunsAProgramWithArgumentsAndEnvironment) {
  ASSERT_EQ(setenv("FROM_PARENT", "yes", 1), 0);
  SpawnOptions options = Shell("echo $1 $FROM_PARENT $OWN");
  options.arguments.insert(options.arguments.end(), {"sh", "a b"});
  EXPECT_EQ(Output(options), "a b yes\n");
  options.environment = {"OWN=1"};
  EXPECT_EQ(Output(options), "a b 1\n");
}

TEST(Spawn, PlacesDescriptorsEvenCrosswiseAndNoOthers) {
  Pipe a, b;
  const int low = std::min(a.writer.get(), b.writer.get());
  const int high = std::max(a.writer.get(), b.writer.get());
  SpawnOptions options =
      Shell("readlink /proc/self/fd/" + std::to_string(low) +
            " /proc/self/fd/" + std::to_string(high) + " /proc/self/fd/0");
  options.descriptors = {{.fd = low, .number = high},
                         {.fd = high, .number = low},
                         {.fd = kDevNull, .number = 0}};
  const auto target = [](int fd) {
    char text[64] = {};
    EXPECT_GT(readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), text,
                       sizeof(text) - 1),
              0);
    return std::string(text);
  };
  EXPECT_EQ(Output(options),
            target(high) + "\n" + target(low) + "\n/dev/null\n");
  const std::string all = Output(Shell("exec ls -l /proc/self/fd"));
  EXPECT_NE(all, "");
  for (const Fd* fd : {&a.reader, &a.writer, &b.reader, &b.writer}) {
    EXPECT_EQ(all.find(target(fd->get())), std::string::npos) << all;
  }
}

TEST(Spawn, AProgramThatIsNotThereIsAnErrorAndLeavesNoChild) {
  SpawnOptions options;
  options.program = "/nonexistent/program";
  options.arguments = {"program"};
  Child child;
  const Status s = Spawn(options, &child);
  EXPECT_EQ(s.message(),
            "cannot run /nonexistent/program: No such file or directory");
  EXPECT_EQ(child.pid, -1);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST(Spawn, ADescriptorThatIsNotOpenIsAnError) {
  SpawnOptions options = Shell("exit 0");
  options.descriptors = {{.fd = 12345, .number = 3}};
  Child child;
  EXPECT_FALSE(Spawn(options, &child).ok());
}

// "SigBlk:\t0000000000000000" without its name.
std::string Mask(const std::string& status, const std::string& name) {
  const size_t at = status.find(name + ":\t");
  return at == std::string::npos ? "" : status.substr(at + name.size() + 2, 16);
}

TEST(Spawn, SignalsAreNotBlockedNorHandledAndIgnoredAsAsked) {
  sigset_t some, before;
  sigemptyset(&some);
  sigaddset(&some, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &some, &before);
  std::signal(SIGUSR1, [](int) {});
  std::signal(SIGUSR2, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  SpawnOptions options;
  options.program = "/bin/cat";
  options.arguments = {"cat", "/proc/self/status"};
  options.default_signals = {SIGPIPE};
  const std::string status = Output(options);
  EXPECT_EQ(Mask(status, "SigBlk"), "0000000000000000");
  EXPECT_EQ(Mask(status, "SigCgt"), "0000000000000000");
  const unsigned long ignored = std::stoul(Mask(status, "SigIgn"), nullptr, 16);
  EXPECT_NE(ignored & (1ul << (SIGUSR2 - 1)), 0u);
  EXPECT_EQ(ignored & (1ul << (SIGPIPE - 1)), 0u);
  // Ours are as they were.
  sigset_t now;
  pthread_sigmask(SIG_SETMASK, &before, &now);
  EXPECT_EQ(sigismember(&now, SIGTERM), 1);
  EXPECT_EQ(sigismember(&now, SIGINT), 0);
  EXPECT_EQ(std::signal(SIGUSR2, SIG_DFL), SIG_IGN);
  std::signal(SIGUSR1, SIG_DFL);
  std::signal(SIGPIPE, SIG_DFL);
}

TEST(Spawn, ProcessGroups) {
  Pipe hold;  // they wait until it is closed
  const auto start = [&](ProcessGroup how, pid_t group) {
    SpawnOptions options = Shell("read x");
    options.descriptors = {{.fd = hold.reader.get(), .number = 0}};
    options.process_group = how;
    options.group = group;
    Child child;
    EXPECT_TRUE(Spawn(options, &child).ok());
    return child;
  };
  const Child inherits = start(ProcessGroup::kInherit, 0);
  EXPECT_EQ(getpgid(inherits.pid), getpgrp());
  const Child leads = start(ProcessGroup::kNew, 0);
  EXPECT_EQ(getpgid(leads.pid), leads.pid);
  EXPECT_EQ(getsid(leads.pid), getsid(0));
  const Child joins = start(ProcessGroup::kJoin, leads.pid);
  EXPECT_EQ(getpgid(joins.pid), leads.pid);
  const Child session = start(ProcessGroup::kNewSession, 0);
  EXPECT_EQ(getsid(session.pid), session.pid);
  hold.writer.Reset();
  for (const Child* child : {&inherits, &leads, &joins, &session}) {
    WaitFor(*child);
  }
}

TEST(Spawn, ADeathSignalComesWhenTheThreadEnds) {
  Pipe hold;
  Child child;
  std::thread([&] {
    SpawnOptions options = Shell("read x");
    options.descriptors = {{.fd = hold.reader.get(), .number = 0}};
    options.death_signal = SIGKILL;
    EXPECT_TRUE(Spawn(options, &child).ok());
  }).join();
  const int status = WaitFor(child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
}

TEST(Spawn, LimitOfDescriptors) {
  SpawnOptions options = Shell("ulimit -n");
  options.open_files = rlimit{123, 124};
  EXPECT_EQ(Output(options), "123\n");
}

TEST(Spawn, ScriptsWithoutAnInterpreterRunIfAsked) {
  const std::string path = std::string(getenv("TEST_TMPDIR")) + "/script";
  std::ofstream(path) << "echo script $1\n";
  ASSERT_EQ(chmod(path.c_str(), 0700), 0);
  SpawnOptions options;
  options.program = path;
  options.arguments = {"script", "x"};
  Child child;
  EXPECT_FALSE(Spawn(options, &child).ok());
  options.run_scripts = true;
  EXPECT_EQ(Output(options), "script x\n");
}

int forks = 0;

// libmaypole starts processes in training processes, whose libraries may have
// fork handlers that must not run then (or take locks that are held).
TEST(Spawn, RunsNoForkHandlers) {
  pthread_atfork([] { ++forks; }, nullptr, nullptr);
  EXPECT_EQ(Output(Shell("echo x")), "x\n");
  EXPECT_EQ(forks, 0);
}

TEST(Spawn, FromManyThreadsAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 20; ++i) {
        const std::string text = std::to_string(t * 100 + i);
        EXPECT_EQ(Output(Shell("echo " + text)), text + "\n");
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST(Spawn, OneThatIsNotWatched) {
  SpawnOptions options = Shell("exit 0");
  options.watched = false;
  Child child;
  ASSERT_TRUE(Spawn(options, &child).ok());
  EXPECT_FALSE(child.end.valid());
  int status = -1;
  EXPECT_EQ(waitpid(child.pid, &status, 0), child.pid);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace maypole
