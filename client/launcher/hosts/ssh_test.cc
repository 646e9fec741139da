#include "client/launcher/hosts/ssh.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace maypole::launcher {
namespace {

constexpr Exit kFailed{.signaled = false, .value = 255};

std::string Why(std::vector<std::string> lines, Exit exit = kFailed) {
  return WhySshEnded({.host = "b",
                      .exit = exit,
                      .lines = std::move(lines),
                      .settings = {.program = "/opt/maypolerun"}});
}

TEST(SshTest, TheCommandLineHasNoSecretsAndEndsItsOptions) {
  std::vector<std::string> args = SshArguments(
      "me@b", {.start_timeout_s = 5, .program = "/a b/maypolerun"});
  ASSERT_GE(args.size(), 3u);
  EXPECT_EQ(args.end()[-3], "--");
  EXPECT_EQ(args.end()[-2], "me@b");
  EXPECT_EQ(args.back(), "exec '/a b/maypolerun' --node-of-job");
  EXPECT_TRUE(std::count(args.begin(), args.end(), "ConnectTimeout=5"));
  EXPECT_FALSE(std::count(args.begin(), args.end(), "-p"));
  EXPECT_FALSE(std::count(args.begin(), args.end(), "-i"));
}

TEST(SshTest, PortAndKey) {
  std::vector<std::string> args =
      SshArguments("b", {.port = 2222, .identity_file = "k", .program = "m"});
  auto after = [&](const char* flag) {
    auto at = std::find(args.begin(), args.end(), flag);
    return at == args.end() ? "" : at[1];
  };
  EXPECT_EQ(after("-p"), "2222");
  EXPECT_EQ(after("-i"), "k");
  EXPECT_TRUE(std::count(args.begin(), args.end(), "ConnectTimeout=20"));
}

TEST(SshTest, WordsOfAShell) {
  EXPECT_EQ(ShellWord("it's $HOME"), "'it'\\''s $HOME'");
}

TEST(SshTest, WhatTravels) {
  for (const char* name : {"PATH", "PYTHONPATH", "http_proxy", "LANG",
                           "CUDA_VISIBLE_DEVICES", "HOROVOD_FUSION_THRESHOLD",
                           "MAYPOLE_LIBRARY", "OMP_NUM_THREADS", "HOMER"}) {
    EXPECT_TRUE(Travels(name)) << name;
  }
  for (const char* name :
       {"HOME", "USER", "PWD", "SSH_AUTH_SOCK", "XDG_RUNTIME_DIR", "TMPDIR",
        "DISPLAY", "TERM", "MAYPOLE_AGENT", "MAYPOLE_RANK", "_", ""}) {
    EXPECT_FALSE(Travels(name)) << name;
  }
}

TEST(SshTest, WhatToDoWhenItDoesNotGetThere) {
  EXPECT_EQ(Why({"ssh: connect to host b port 22: Connection refused"}),
            "ssh: connect to host b port 22: Connection refused; no sshd "
            "listens there: start it, or name its port (--ssh-port)");
  EXPECT_NE(Why({"me@b: Permission denied (publickey)."}).find("ssh-copy-id"),
            std::string::npos);
  EXPECT_NE(Why({"@@@@", "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @",
                 "Host key verification failed."})
                .find("ssh: Host key verification failed.; its host key "
                      "differs from the one in known_hosts"),
            std::string::npos);
  EXPECT_NE(Why({"ssh: connect to host b port 22: No route to host"})
                .find("cannot be reached"),
            std::string::npos);
  EXPECT_EQ(Why({}), "ssh exited with code 255 and wrote nothing");
  EXPECT_EQ(Why({"something odd", ""}),
            "ssh exited with code 255: something odd");
}

TEST(SshTest, AProgramThatIsNotThere) {
  EXPECT_EQ(Why({"bash: line 1: /opt/maypolerun: No such file or directory"},
                {.signaled = false, .value = 127}),
            "cannot run /opt/maypolerun there (bash: line 1: /opt/maypolerun: "
            "No such file or directory): install Maypole at the same path, or "
            "say where it is (--remote-bin DIR)");
}

TEST(SshTest, AConnectionThatBroke) {
  EXPECT_EQ(WhySshEnded({.host = "b",
                         .exit = kFailed,
                         .greeted = true,
                         .lines = {"Timeout, server b not responding."}}),
            "the connection broke: ssh exited with code 255: Timeout, server b "
            "not responding.");
}

TEST(SshTest, ItsWordsCannotMoveTheCursor) {
  EXPECT_EQ(Why({"\x1b[2Jgone\a"}), "ssh exited with code 255: [2Jgone");
  EXPECT_LT(Why({std::string(100000, 'x')}).size(), 400u);
}

}  // namespace
}  // namespace maypole::launcher
