// Command, and the MPS daemon, of which there is a double here: a shell script
// in PATH. This program is the actors too.
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gpu/probe/lab/command.h"
#include "tests/gpu/probe/lab/lab.h"

namespace maypole::probe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr Duration kSoon = Seconds(20);
constexpr char kPipes[] = "CUDA_MPS_PIPE_DIRECTORY";

// A client of the daemon: it is served if the script below serves.
absl::Status Describe(Stage& stage) {
  const char* directory = getenv(kPipes);
  if (directory != nullptr && access(directory, F_OK) == 0) {
    std::ofstream(absl::StrCat(directory, "/client")) << "here\n";
  }
  const absl::Status sent = stage.channel().Send(
      absl::StrCat("machine ", directory == nullptr ? "-" : directory));
  stage.channel().Receive(kSoon).status().IgnoreError();
  return sent;
}

// Under MPS the daemon has a server once it has a client; its id is none that
// Linux gives.
constexpr char kServes[] = R"(#!/bin/sh
cd "$CUDA_MPS_PIPE_DIRECTORY" || exit 1
if [ "$1" = -f ]; then
  echo "$$" > pid
  while [ ! -e quit ]; do sleep 0.02; done
  exit 0
fi
read command
case "$command" in
get_server_list) [ -e pid ] || exit 1; [ ! -e client ] || echo 4194999;;
"quit -t 2") touch quit;;
*) exit 2;;
esac
)";
constexpr char kIgnoresClients[] = R"(#!/bin/sh
cd "$CUDA_MPS_PIPE_DIRECTORY" || exit 1
if [ "$1" = -f ]; then
  echo "cannot serve" > control.log
  while [ ! -e quit ]; do sleep 0.02; done
  exit 0
fi
read command
[ "$command" = get_server_list ] || touch quit
)";
constexpr char kRefuses[] = R"(#!/bin/sh
echo "no permission" > "$CUDA_MPS_LOG_DIRECTORY/control.log"
exit 3
)";

}  // namespace

const RoleTable& Roles() {
  static const RoleTable* roles = new RoleTable{{"describe", Describe}};
  return *roles;
}

namespace {

class MpsTest : public testing::Test {
 protected:
  MpsTest() : path_(getenv("PATH")) {
    char directory[] = "/tmp/maypole-mps-test-XXXXXX";
    directory_ = mkdtemp(directory);
  }
  ~MpsTest() override {
    setenv("PATH", path_.c_str(), 1);
    std::filesystem::remove_all(directory_);
  }

  void Install(const char* script) {
    const std::string file = directory_ + "/nvidia-cuda-mps-control";
    std::ofstream(file) << script;
    chmod(file.c_str(), 0755);
    setenv("PATH", absl::StrCat(directory_, ":", path_).c_str(), 1);
  }

  // What WithoutAndWithMps calls: "measure MODE", "missing WHY".
  std::vector<std::string> Calls(Options options = {}) {
    Lab lab(options, &report_);
    std::vector<std::string> calls;
    WithoutAndWithMps(
        lab,
        [&](const std::string& mode) { calls.push_back("measure " + mode); },
        [&](const std::string& why) { calls.push_back("missing " + why); });
    return calls;
  }

  const std::string path_;
  std::string directory_;
  Report report_;
};

TEST_F(MpsTest, StartsADaemonOfItsOwnAndEndsIt) {
  Install(kServes);
  auto mps = Mps::Start();
  ASSERT_TRUE(mps.ok()) << mps.status();
  const auto environment = (*mps)->environment();
  const std::string directory = environment.at(kPipes);
  EXPECT_EQ(environment.at("CUDA_MPS_LOG_DIRECTORY"), directory);
  auto servers = (*mps)->Servers();
  ASSERT_TRUE(servers.ok()) << servers.status();
  EXPECT_THAT(*servers, ElementsAre());
  std::ofstream(directory + "/client") << "here\n";
  servers = (*mps)->Servers();
  ASSERT_TRUE(servers.ok()) << servers.status();
  EXPECT_THAT(*servers, ElementsAre(4194999));

  pid_t daemon = 0;
  std::ifstream(directory + "/pid") >> daemon;
  EXPECT_EQ(kill(daemon, 0), 0);
  mps->reset();
  EXPECT_EQ(kill(daemon, 0), -1);
  EXPECT_FALSE(std::filesystem::exists(directory));
}

TEST_F(MpsTest, SomebodyElsesServesNobody) {
  setenv(kPipes, directory_.c_str(), 1);
  std::string seen;
  Options options;
  options.fake = true;
  Lab lab(options, &report_);
  WithoutAndWithMps(
      lab,
      [&](const std::string&) {
        auto actor = lab.Start("describe");
        ASSERT_TRUE(actor.ok()) << actor.status();
        const auto line = actor->channel().Expect("machine", kSoon);
        ASSERT_TRUE(line.ok()) << line.status();
        seen = line->text;
      },
      [](const std::string&) {});
  unsetenv(kPipes);
  EXPECT_EQ(seen, "machine /tmp/maypole-without-mps");
}

TEST_F(MpsTest, MeasuresWithoutThenWithIt) {
  Install(kServes);
  EXPECT_THAT(Calls(), ElementsAre("measure no MPS", "measure MPS"));
  EXPECT_THAT(report_.Table(), HasSubstr("MPS: yes\n"));
}

TEST_F(MpsTest, NoProgramIsTold) {
  setenv("PATH", "/usr/bin:/bin", 1);
  if (RunCommand({{"sh", "-c", "command -v nvidia-cuda-mps-control"}}, kSoon)
          .ok()) {
    GTEST_SKIP() << "this machine has MPS";
  }
  EXPECT_THAT(Calls(), ElementsAre("measure no MPS",
                                   "missing no nvidia-cuda-mps-control on this "
                                   "machine"));
}

TEST_F(MpsTest, ARefusalIsToldWithItsLog) {
  Install(kRefuses);
  EXPECT_THAT(Calls(),
              ElementsAre("measure no MPS",
                          "missing nvidia-cuda-mps-control -f ended with "
                          "status 3: no permission "));
}

TEST_F(MpsTest, ClientsThatGoWithoutItDoNotCount) {
  Install(kIgnoresClients);
  EXPECT_THAT(
      Calls(),
      ElementsAre("measure no MPS",
                  "missing MPS does not serve: it started no server for a "
                  "client; its log: cannot serve "));
}

TEST_F(MpsTest, TheFakeHasNone) {
  Install(kServes);
  Options options;
  options.fake = true;
  EXPECT_THAT(Calls(options),
              ElementsAre("measure no MPS", "missing the fake has no MPS"));
}

// --- Command -----------------------------------------------------------------

TEST(CommandTest, GivesWhatItPrinted) {
  const auto text = RunCommand(
      {{"sh", "-c", "echo a; cat; echo \"$X\" >&2"}, {{"X", "y z"}}, "in\n"},
      kSoon);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "a\nin\ny z");
}

TEST(CommandTest, TellsWhatWentWrong) {
  EXPECT_EQ(RunCommand({{"no-such-program-here"}}, kSoon).status(),
            absl::NotFoundError("no no-such-program-here in PATH"));
  EXPECT_EQ(RunCommand({{"sh", "-c", "echo why; exit 4"}}, kSoon).status(),
            absl::UnavailableError("sh ended with status 4: why"));
  const auto start = Clock::now();
  EXPECT_EQ(RunCommand({{"sleep", "100"}}, Seconds(0.2)).status(),
            absl::DeadlineExceededError("sleep did not end in time"));
  EXPECT_LT(Clock::now() - start, Seconds(10));
}

}  // namespace
}  // namespace maypole::probe

int main(int argc, char** argv) {
  if (const auto status = maypole::probe::PlayRole(argc, argv)) return *status;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
