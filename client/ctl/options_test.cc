#include "client/ctl/options.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "common/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::ctl {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<CtlOptions> Parse(const std::vector<std::string>& args,
                                 std::map<std::string, std::string> env = {}) {
  return ParseOptions(args, [env](const std::string& name) {
    const auto it = env.find(name);
    return it == env.end() ? "" : it->second;
  });
}

std::string Error(const std::vector<std::string>& args) {
  const auto options = Parse(args);
  EXPECT_FALSE(options.ok());
  return std::string(options.status().message());
}

TEST(OptionsTest, DefaultsAndTheEnvironment) {
  auto o = Parse({"status"});
  ASSERT_TRUE(o.ok()) << o.status();
  EXPECT_EQ(o->command, Command::kStatus);
  EXPECT_EQ(o->coordinator, "127.0.0.1:4001");
  EXPECT_EQ(o->secret_file, "");
  const std::map<std::string, std::string> env = {
      {"MAYPOLE_COORDINATOR", "head:1"},
      {"MAYPOLE_SECRET_FILE", "/s"},
      {"MAYPOLE_OPERATOR_SECRET_FILE", "/o"}};
  o = Parse({"jobs"}, env);
  EXPECT_EQ(o->coordinator, "head:1");
  EXPECT_EQ(o->secret_file, "/s");
  EXPECT_EQ(o->operator_secret_file, "/o");
  o = Parse({"--coordinator=other:2", "jobs", "--secret-file", "/t",
             "--operator-secret-file=/p"},
            env);
  EXPECT_EQ(o->coordinator, "other:2");
  EXPECT_EQ(o->secret_file, "/t");
  EXPECT_EQ(o->operator_secret_file, "/p");
}

TEST(OptionsTest, EveryCommandWithItsFlags) {
  auto o = Parse({"abort", "--reason", "too slow", "train", "--json"});
  ASSERT_TRUE(o.ok()) << o.status();
  EXPECT_EQ(o->command, Command::kAbort);
  EXPECT_EQ(o->job, "train");
  EXPECT_EQ(o->reason, "too slow");
  EXPECT_TRUE(o->json);
  o = Parse({"events", "-f", "-n", "5", "train"});
  ASSERT_TRUE(o.ok()) << o.status();
  EXPECT_TRUE(o->follow);
  EXPECT_EQ(o->last, 5);
  o = Parse({"top", "train", "--interval", "5", "--looks=3"});
  ASSERT_TRUE(o.ok()) << o.status();
  EXPECT_EQ(o->command, Command::kTop);
  EXPECT_EQ(o->job, "train");
  EXPECT_EQ(o->interval_s, 5);
  EXPECT_EQ(o->looks, 3);
  o = Parse({"top"});
  EXPECT_EQ(o->interval_s, 1);
  EXPECT_EQ(o->looks, 0);
  o = Parse({"drain", "n1", "--wait", "--timeout=3"});
  ASSERT_TRUE(o.ok()) << o.status();
  EXPECT_EQ(o->node, "n1");
  EXPECT_TRUE(o->wait);
  EXPECT_EQ(o->timeout_s, 3);
  o = Parse({"ranks", "--each"});
  EXPECT_TRUE(o->each);
  EXPECT_EQ(o->job, "");
  EXPECT_TRUE(Parse({"drain", "n1", "--undo"})->undo);
  o = Parse({"timeline", "train", "--stop"});
  ASSERT_TRUE(o.ok()) << o.status();
  EXPECT_EQ(o->command, Command::kTimeline);
  EXPECT_EQ(o->job, "train");
  EXPECT_TRUE(o->stop);
  EXPECT_FALSE(Parse({"dashboard"})->control);
  EXPECT_TRUE(Parse({"dashboard", "--control"})->control);
}

TEST(OptionsTest, WrongArgumentsAreOneLine) {
  EXPECT_THAT(Error({}), HasSubstr("expected a command: status, jobs,"));
  EXPECT_THAT(Error({"stats"}),
              HasSubstr("no command 'stats'; did you mean 'status'?"));
  EXPECT_THAT(Error({"abort"}), HasSubstr("JOB is required"));
  EXPECT_THAT(Error({"drain"}), HasSubstr("NODE is required"));
  EXPECT_THAT(Error({"status", "x"}), HasSubstr("unexpected argument 'x'"));
  EXPECT_THAT(Error({"abort", "a", "b"}), HasSubstr("unexpected argument 'b'"));
  EXPECT_THAT(Error({"abort", ""}),
              HasSubstr("JOB: expected a name, got \"\""));
  EXPECT_THAT(Error({"status", "--follow"}),
              HasSubstr("--follow is an option of events, not of status"));
  EXPECT_THAT(Error({"status", "--what"}), HasSubstr("no flag '--what'"));
  const std::string timeout = "--timeout: expected an integer from 1 to 3600";
  EXPECT_THAT(Error({"status", "--timeout"}), HasSubstr(timeout));
  EXPECT_THAT(Error({"status", "--timeout=0"}), HasSubstr(timeout));
  EXPECT_THAT(Error({"status", "--timeout=9999"}), HasSubstr(timeout));
  EXPECT_THAT(Error({"status", "--json=yes"}), HasSubstr("takes no value"));
  EXPECT_THAT(Error({"drain", "n", "--undo", "--wait"}),
              HasSubstr("contradict"));
  EXPECT_THAT(Error({"abort", "a", "--reason", std::string(600, 'x')}),
              HasSubstr("512 are allowed"));
}

TEST(OptionsTest, HelpNeedsNothingElse) {
  const std::string help = Parse({"--help"})->answer.value();
  for (const char* part :
       {"drain NODE", "ranks [JOB]", "-f, --follow", "$MAYPOLE_COORDINATOR",
        "[default: 127.0.0.1:4001]", "[default: 10]"}) {
    EXPECT_THAT(help, HasSubstr(part));
  }
  EXPECT_THAT(Parse({"abort", "-h"})->answer.value(), HasSubstr("--reason"));
  EXPECT_EQ(Parse({"--version"})->answer,
            absl::StrCat("maypolectl ", kVersion, "\n"));
}

}  // namespace
}  // namespace maypole::ctl
