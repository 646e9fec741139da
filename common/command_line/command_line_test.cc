// Tests spellings, errors, suggestions, --help and completion through
// CommandLine.
#include "common/command_line/command_line.h"

#include <stdlib.h>

#include <cstdint>
#include <fstream>

#include "absl/time/time.h"
#include "common/command_line/daemon_value.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole {
namespace {

using Args = std::vector<std::string>;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Programs with command lines like those of a daemon, maypolerun and
// maypolectl.
struct Daemon {
  std::string listen = "127.0.0.1:0";
  std::string metrics = "none";
  std::string secret_file;
  std::string log_level = "info";
  int slots = 128;
  uint64_t bytes = 4096;
  absl::Duration network_timeout = absl::Seconds(10);
  absl::Duration start_timeout = absl::Seconds(120);
  int control_fd = -1;
  std::optional<std::string> answer;

  Status Parse(const Args& args) {
    CommandLine line({.name = "maypole-daemon",
                      .version = "1.2.3",
                      .about = "About.\n\nUsage:\n  maypole-daemon [flags]\n",
                      .notes = "The end."});
    line.Add({"--listen"}, TextValue(&listen, "HOST:PORT"), "where to listen");
    line.Add({"--metrics"}, TextValue(&metrics, "HOST:PORT"), "metrics");
    line.Add({"--secret_file"}, FileValue(&secret_file), "the secret's file");
    line.Add({"--log_level"}, LogLevelValue(&log_level), "the level");
    line.Add({"--slots"}, IntegerValue(&slots, 64, 16384),
             "names that a job may have at a time, and some more words so that "
             "the text needs a second line");
    line.Add({"--bytes"}, IntegerValue(&bytes, uint64_t{0}), "bytes");
    line.Add(
        {"--network_timeout"},
        DurationValue(&network_timeout, absl::ZeroDuration(), absl::Hours(1)),
        "a time");
    line.Add({"--start_timeout"},
             DurationValue(&start_timeout, kShortestDuration,
                           absl::InfiniteDuration()),
             "another");
    line.Add({"--control_fd"}, IntegerValue(&control_fd, -1), "");
    return line.Parse(args, &answer);
  }
};

struct Runner {
  int ranks = 0;
  int nodes = 1;
  bool prefix = true;
  bool agent = false;
  std::string socket;
  std::string hosts;
  std::vector<std::string> networks;
  std::vector<std::string> flags;
  std::vector<std::string> command;
  std::optional<std::string> answer;

  Status Parse(const Args& args) {
    CommandLine line({.name = "runner",
                      .version = "1.2.3",
                      .about = "About.\n",
                      .notes = "",
                      .command = &command,
                      .abbreviations = true});
    line.Add({"-np", "-n", "--num-proc"}, IntegerValue(&ranks, 1, 4096), "n");
    line.Add({"--nodes"}, IntegerValue(&nodes, 1, 64), "nodes");
    line.Add({"--no-prefix"}, SwitchValue(&prefix, false), "no prefix");
    line.Add({"-H", "--hosts"}, TextValue(&hosts, "HOST:SLOTS,..."), "hosts");
    line.Add({"--agent"}, OptionalTextValue(&agent, &socket, "SOCKET"), "a");
    line.Add({"--networks"}, ListValue(&networks, "A,B"), "networks");
    line.AddUnabbreviated({"--agent-flag"}, RepeatedValue(&flags, "FLAG"), "f");
    return line.Parse(args, &answer);
  }
};

struct Control {
  std::string chosen;
  std::string coordinator = "127.0.0.1:4001";
  std::string job;
  bool json = false;
  bool follow = false;
  int last = 0;
  std::optional<std::string> answer;

  Status Parse(const Args& args) {
    CommandLine line({.name = "control",
                      .version = "1.2.3",
                      .about = "About.\n",
                      .notes = ""});
    for (const char* name : {"status", "events", "abort"}) {
      line.AddCommand(name, "does " + std::string(name),
                      [this, name] { chosen = name; });
    }
    line.AddWord("events", NameValue(&job, "JOB"), false);
    line.AddWord("abort", NameValue(&job, "JOB"), true);
    line.Add({"-f", "--follow"}, SwitchValue(&follow), "follow", "events");
    line.Add({"-n", "--last"}, IntegerValue(&last, 1), "last", "events");
    line.Add({"--json"}, SwitchValue(&json), "json");
    line.Add({"--coordinator"}, TextValue(&coordinator, "HOST:PORT"), "where");
    return line.Parse(args, &answer);
  }
};

template <class Program>
Program Parsed(const Args& args) {
  Program program;
  const Status status = program.Parse(args);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_FALSE(program.answer);
  return program;
}

template <class Program>
std::string Refused(const Args& args) {
  Program program;
  const Status status = program.Parse(args);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.message().find('\n'), std::string::npos);
  return status.message();
}

template <class Program>
std::string Answer(const Args& args) {
  Program program;
  const Status status = program.Parse(args);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(program.answer);
  return program.answer.value_or("");
}

// --- Spellings ---------------------------------------------------------------

TEST(SpellingTest, ValuesStandInTheSameWordOrTheNext) {
  for (const Args& args : {Args{"--secret_file=f"}, Args{"--secret_file", "f"},
                           Args{"-secret_file=f"}, Args{"-secret_file", "f"},
                           Args{"--secret-file=f"}, Args{"--secret-file", "f"},
                           Args{"-secret-file", "f"}}) {
    EXPECT_EQ(Parsed<Daemon>(args).secret_file, "f") << args[0];
  }
}

TEST(SpellingTest, AValueMayBeEmptyOrLookLikeAnything) {
  EXPECT_EQ(Parsed<Daemon>({"--metrics="}).metrics, "");
  EXPECT_EQ(Parsed<Daemon>({"--metrics", "", "--slots=64"}).metrics, "");
  EXPECT_EQ(Parsed<Daemon>({"--metrics", "--slots"}).metrics, "--slots");
  EXPECT_EQ(Parsed<Daemon>({"--metrics", "--"}).metrics, "--");
  EXPECT_EQ(Parsed<Daemon>({"--metrics=a=b"}).metrics, "a=b");
  EXPECT_EQ(Parsed<Daemon>({"--metrics", "[::1]:40"}).metrics, "[::1]:40");
  EXPECT_EQ(Parsed<Daemon>({"--metrics", "[a,b]"}).metrics, "[a,b]");
}

TEST(SpellingTest, TheLaterOfTwoCounts) {
  EXPECT_EQ(Parsed<Daemon>({"--slots=64", "--slots=256"}).slots, 256);
  EXPECT_EQ(Parsed<Runner>({"--networks=a", "--networks=b,c"}).networks,
            (Args{"b", "c"}));
  EXPECT_EQ(Parsed<Runner>({"--agent-flag=-a", "--agent-flag", "-b"}).flags,
            (Args{"-a", "-b"}));
}

TEST(SpellingTest, TheNumberOfRanks) {
  for (const Args& args :
       {Args{"-np", "2"}, Args{"-np=2"}, Args{"-np2"}, Args{"--np", "2"},
        Args{"--np=2"}, Args{"-n", "2"}, Args{"-n2"}, Args{"-n=2"},
        Args{"--n", "2"}, Args{"--num-proc", "2"}, Args{"--num-proc=2"},
        Args{"--num_proc=2"}, Args{"-num-proc", "2"}, Args{"--num", "2"}}) {
    EXPECT_EQ(Parsed<Runner>(args).ranks, 2) << args[0];
  }
  EXPECT_EQ(Parsed<Control>({"events", "-n5"}).last, 5);
  EXPECT_THAT(Refused<Runner>({"-np2x"}), HasSubstr("no flag '-np2x'"));
}

TEST(SpellingTest, IntegersAndTimes) {
  EXPECT_EQ(Parsed<Daemon>({"--bytes=0x1000"}).bytes, 4096u);
  EXPECT_EQ(Parsed<Daemon>({"--bytes=010"}).bytes, 10u);
  EXPECT_EQ(Parsed<Daemon>({"--bytes=18446744073709551615"}).bytes, UINT64_MAX);
  EXPECT_EQ(Parsed<Daemon>({"--control_fd=-1"}).control_fd, -1);
  for (const auto& [text, time] :
       {std::pair("120s", absl::Seconds(120)),
        std::pair("3s", absl::Seconds(3)),
        std::pair("500ms", absl::Milliseconds(500)),
        std::pair("1h30m", absl::Minutes(90)),
        std::pair("1.5s", absl::Milliseconds(1500)),
        std::pair("inf", absl::InfiniteDuration())}) {
    EXPECT_EQ(Parsed<Daemon>({"--start_timeout", text}).start_timeout, time);
  }
  for (const char* level : {"trace", "warning", "warn", "err", "critical"}) {
    EXPECT_EQ(Parsed<Daemon>({"--log_level", level}).log_level, level);
  }
}

TEST(SpellingTest, AnOptionalValueStandsInTheSameWordOnly) {
  EXPECT_FALSE(Parsed<Runner>({"-np2"}).agent);
  Runner runner = Parsed<Runner>({"--agent", "program"});
  EXPECT_TRUE(runner.agent);
  EXPECT_EQ(runner.socket, "");
  EXPECT_EQ(runner.command, Args{"program"});
  EXPECT_EQ(Parsed<Runner>({"--agent=/a"}).socket, "/a");
}

TEST(SpellingTest, TheCommandKeepsItsOwnOptions) {
  Runner runner = Parsed<Runner>({"-np", "2", "x", "--nodes", "7", "-np4"});
  EXPECT_EQ(runner.nodes, 1);
  EXPECT_EQ(runner.command, (Args{"x", "--nodes", "7", "-np4"}));
  runner = Parsed<Runner>({"--no-prefix", "--", "--nodes", "--", "--help"});
  EXPECT_FALSE(runner.prefix);
  EXPECT_EQ(runner.command, (Args{"--nodes", "--", "--help"}));
  EXPECT_EQ(Parsed<Runner>({"-"}).command, Args{"-"});
}

TEST(SpellingTest, AnAbbreviationMustMeanOneOption) {
  EXPECT_EQ(Parsed<Runner>({"--nod", "3"}).nodes, 3);
  EXPECT_EQ(Parsed<Runner>({"-host=a"}).hosts, "a");
  // --agent-flag, --completion and --flagfile are not abbreviated.
  EXPECT_TRUE(Parsed<Runner>({"--ag"}).agent);
  EXPECT_THAT(Refused<Runner>({"--no"}), HasSubstr("no flag '--no'"));
  EXPECT_THAT(Refused<Runner>({"--comp", "x"}), HasSubstr("no flag '--comp'"));
  EXPECT_THAT(Refused<Daemon>({"--slot", "64"}), HasSubstr("no flag '--slot'"));
}

TEST(SpellingTest, OptionsOfACommandStandBeforeOrAfterIt) {
  for (const Args& args :
       {Args{"--follow", "--last=3", "events", "j", "--json"},
        Args{"events", "-f", "j", "-n", "3", "--json"},
        Args{"--json", "-f", "events", "--last", "3", "--", "j"}}) {
    const Control control = Parsed<Control>(args);
    EXPECT_EQ(control.chosen, "events");
    EXPECT_EQ(control.job, "j");
    EXPECT_TRUE(control.json && control.follow);
    EXPECT_EQ(control.last, 3);
  }
  // A job's name may be that of a command, or look like an option.
  EXPECT_EQ(Parsed<Control>({"abort", "status"}).job, "status");
  EXPECT_EQ(Parsed<Control>({"abort", "--", "--json"}).job, "--json");
}

class FlagFileTest : public ::testing::Test {
 protected:
  static std::string Write(const std::string& name, const std::string& text) {
    const std::string path = std::string(getenv("TEST_TMPDIR")) + "/" + name;
    std::ofstream(path) << text;
    return path;
  }
};

TEST_F(FlagFileTest, ItsLinesStandInItsPlace) {
  const std::string inner = Write("inner", "--metrics=m\n");
  const std::string path =
      Write("flags",
            "# a comment\n\n  --slots=256 \r\n--listen=a b\n"
            "-flagfile=" +
                inner + "\n");
  Daemon daemon = Parsed<Daemon>({"--slots=64", "--flagfile=" + path});
  EXPECT_EQ(daemon.slots, 256);
  EXPECT_EQ(daemon.listen, "a b");
  EXPECT_EQ(daemon.metrics, "m");
  EXPECT_EQ(Parsed<Daemon>({"--flagfile", path, "--slots=64"}).slots, 64);
  daemon = Parsed<Daemon>({"--flagfile=" + inner + "," + path});
  EXPECT_EQ(daemon.slots, 256);
}

TEST_F(FlagFileTest, ErrorsNameTheFile) {
  EXPECT_THAT(Refused<Daemon>({"--flagfile=/nowhere"}),
              HasSubstr("--flagfile: /nowhere: No such file"));
  EXPECT_THAT(Refused<Daemon>({"--flagfile=/usr"}),
              HasSubstr("--flagfile: /usr: Is a directory"));
  EXPECT_THAT(Refused<Daemon>({"--flagfile=/dev/zero"}),
              HasSubstr("/dev/zero: longer than 16 MiB"));
  EXPECT_THAT(
      Refused<Daemon>({"--flagfile=" + Write("wide", "\xff\xfe-\0-\0")}),
      HasSubstr("is UTF-16 text: save it as UTF-8"));
  const std::string marked = Write("marked", "\xef\xbb\xbf--slots=256\r\n");
  EXPECT_EQ(Parsed<Daemon>({"--flagfile=" + marked}).slots, 256);
  const std::string words = Write("words", "stray\n");
  EXPECT_THAT(Refused<Daemon>({"--flagfile=" + words}),
              AllOf(HasSubstr(words), HasSubstr("'stray' is not an option")));
  const std::string self = Write("self", "");
  Write("self", "--flagfile=" + self + "\n");
  EXPECT_THAT(Refused<Daemon>({"--flagfile=" + self}),
              HasSubstr("names itself"));
}

// --- Errors ------------------------------------------------------------------

TEST(RefusalTest, SaysWhatIsExpected) {
  EXPECT_EQ(Refused<Daemon>({"--slots=x"}),
            "--slots: expected an integer from 64 to 16384, got \"x\"");
  EXPECT_EQ(Refused<Daemon>({"--slots", "32"}),
            "--slots: expected an integer from 64 to 16384, got \"32\"");
  EXPECT_EQ(Refused<Daemon>({"-slots=64k"}),
            "--slots: expected an integer from 64 to 16384, got \"64k\"");
  EXPECT_EQ(Refused<Daemon>({"--slots=99999999999999999999"}),
            "--slots: expected an integer from 64 to 16384, got "
            "\"99999999999999999999\"");
  EXPECT_EQ(Refused<Daemon>({"--bytes=-1"}),
            "--bytes: expected an integer of at least 0, got \"-1\"");
  EXPECT_EQ(Refused<Daemon>({"--network_timeout=10"}),
            "--network_timeout: expected a time such as 3s or 500ms, at least "
            "0 and at most 1h, got \"10\"");
  EXPECT_EQ(Refused<Daemon>({"--start_timeout=0s"}),
            "--start_timeout: expected a time such as 3s or 500ms, more than "
            "0, got \"0s\"");
  EXPECT_EQ(Refused<Daemon>({"--log_level=loud"}),
            "--log_level: expected trace, debug, info, warning, error or off, "
            "got \"loud\"");
  EXPECT_EQ(Refused<Daemon>({"--slots"}),
            "--slots: expected an integer from 64 to 16384; see --help");
  EXPECT_EQ(Refused<Runner>({"-np", "two"}),
            "-np: expected an integer from 1 to 4096, got \"two\"");
  EXPECT_EQ(Refused<Runner>({"-np0"}),
            "-np: expected an integer from 1 to 4096, got \"0\"");
  EXPECT_EQ(Refused<Runner>({"--no-prefix=1"}),
            "--no-prefix takes no value; see --help");
}

TEST(RefusalTest, WordsThatNobodyWants) {
  EXPECT_EQ(Refused<Daemon>({"--slots=64", "stray", "more"}),
            "unexpected argument 'stray'; see --help");
  EXPECT_EQ(Refused<Daemon>({"--", "--slots=64"}),
            "unexpected argument '--slots=64'; see --help");
  EXPECT_EQ(Refused<Daemon>({"--", "--"}),
            "unexpected argument '--'; see --help");
  EXPECT_EQ(Refused<Control>({"status", "x"}),
            "unexpected argument 'x'; see --help");
  EXPECT_EQ(Refused<Control>({"abort", "a", "status"}),
            "unexpected argument 'status'; see --help");
  EXPECT_EQ(Refused<Control>({"abort"}), "JOB is required; see --help");
  EXPECT_EQ(Refused<Control>({"abort", ""}), "JOB: expected a name, got \"\"");
  EXPECT_EQ(Refused<Control>({"status", "--follow"}),
            "--follow is an option of events, not of status; see --help");
  EXPECT_EQ(Refused<Control>({"--json"}),
            "expected a command: status, events or abort; see --help");
}

TEST(RefusalTest, SuggestsTheNameThatWasMeant) {
  EXPECT_EQ(Refused<Daemon>({"--network_timout=3s"}),
            "there is no flag '--network_timout'; did you mean "
            "'--network_timeout'? See --help");
  EXPECT_EQ(Refused<Daemon>({"-lisetn", "x"}),
            "there is no flag '-lisetn'; did you mean '--listen'? See --help");
  EXPECT_EQ(Refused<Daemon>({"--log-levle=info"}),
            "there is no flag '--log-levle'; did you mean '--log_level'? See "
            "--help");
  EXPECT_EQ(Refused<Daemon>({"--network"}),
            "there is no flag '--network'; did you mean '--network_timeout'? "
            "See --help");
  EXPECT_EQ(Refused<Daemon>({"--nosuch=1"}),
            "there is no flag '--nosuch'; see --help");
  // Internal options are not suggested.
  EXPECT_EQ(Refused<Daemon>({"--control_f=1"}),
            "there is no flag '--control_f'; see --help");
  EXPECT_EQ(Refused<Control>({"evnets"}),
            "there is no command 'evnets'; did you mean 'events'? See --help");
  EXPECT_EQ(Refused<Control>({"what"}),
            "there is no command 'what'; see --help");
}

// --- Answers -----------------------------------------------------------------

TEST(HelpTest, ShowsEveryOptionWithItsDefault) {
  const std::string help = Answer<Daemon>({"--help"});
  EXPECT_TRUE(help.starts_with("About.\n\nUsage:\n  maypole-daemon [flags]\n"))
      << help;
  EXPECT_THAT(help, HasSubstr("\nOptions:\n"));
  EXPECT_THAT(help, HasSubstr("\n  --listen=HOST:PORT        where to listen "
                              "[default: 127.0.0.1:0]\n"));
  EXPECT_THAT(help, HasSubstr("\n  --secret_file=PATH        the secret's "
                              "file\n"));
  EXPECT_THAT(help, HasSubstr("\n  --network_timeout=TIME    a time [default: "
                              "10s]\n"));
  EXPECT_THAT(help, HasSubstr("\n  --slots=N                 names that a job "
                              "may have at a time, and some more\n"
                              "                            words so that the "
                              "text needs a second line [default:\n"
                              "                            128]\n"));
  EXPECT_THAT(help, HasSubstr("\n  -h, --help "));
  EXPECT_THAT(help, HasSubstr("\n  -v, --version "));
  EXPECT_THAT(help, HasSubstr("\n  --completion=SHELL "));
  EXPECT_THAT(help, Not(HasSubstr("control_fd")));
  EXPECT_TRUE(help.ends_with("\nThe end.\n")) << help;
  EXPECT_THAT(Answer<Runner>({"-h"}),
              AllOf(HasSubstr("\n  -np, -n, --num-proc=N     n "),
                    HasSubstr("\n  --agent[=SOCKET]          a\n"),
                    HasSubstr("\n  --no-prefix               no prefix\n")));
}

TEST(HelpTest, ShowsCommandsWithTheirWordsAndOptions) {
  const std::string help = Answer<Control>({"--help"});
  EXPECT_THAT(help, HasSubstr("\nCommands:\n"
                              "  status                    does status\n"
                              "  events [JOB]              does events\n"
                              "    -f, --follow            follow\n"
                              "    -n, --last=N            last [default: 0]\n"
                              "  abort JOB                 does abort\n"));
  EXPECT_THAT(help, HasSubstr("  --coordinator=HOST:PORT   where [default: "
                              "127.0.0.1:4001]\n"));
  EXPECT_TRUE(Answer<Control>({"events", "-h"})
                  .starts_with("control events [JOB]: does events\n"));
}

TEST(HelpTest, IsGivenWhateverElseIsWrong) {
  for (const Args& args :
       {Args{"-h"}, Args{"-help"}, Args{"--slots=x", "--help"},
        Args{"--nosuch", "stray", "--help", "--slots"}}) {
    EXPECT_THAT(Answer<Daemon>(args), HasSubstr("--listen=HOST:PORT"));
  }
  EXPECT_FALSE(Parsed<Runner>({"x", "--help"}).answer);
}

TEST(VersionTest, IsOneLine) {
  for (const char* word : {"--version", "-version", "-v"}) {
    EXPECT_EQ(Answer<Daemon>({word}), "maypole-daemon 1.2.3\n") << word;
  }
  EXPECT_EQ(Answer<Runner>({"--version"}), "runner 1.2.3\n");
  EXPECT_EQ(Answer<Runner>({"--vers"}), "runner 1.2.3\n");
  EXPECT_EQ(Answer<Control>({"--version"}), "control 1.2.3\n");
}

template <class Program>
std::string Completed(Args words) {
  words.insert(words.begin(), "--complete");
  return Answer<Program>(words);
}

TEST(CompletionTest, NamesOfOptions) {
  EXPECT_EQ(Completed<Daemon>({"--s"}),
            "--secret_file\n--slots\n--start_timeout\n");
  EXPECT_EQ(Completed<Daemon>({"--slots", "64", "--lo"}), "--log_level\n");
  EXPECT_THAT(Completed<Daemon>({""}), HasSubstr("--listen\n"));
  EXPECT_THAT(Completed<Daemon>({"--"}), Not(HasSubstr("control_fd")));
  EXPECT_EQ(Completed<Daemon>({"--control"}), "");
  EXPECT_EQ(Completed<Runner>({"--a"}), "--agent\n--agent-flag\n");
}

TEST(CompletionTest, Values) {
  EXPECT_EQ(Completed<Daemon>({"--log_level", ""}),
            "trace\ndebug\ninfo\nwarning\nerror\noff\n");
  EXPECT_EQ(Completed<Daemon>({"--log-level", "d"}), "debug\n");
  EXPECT_EQ(Completed<Daemon>({"--log_level=d"}), "--log_level=debug\n");
  // Bash splits "--name=value" into words.
  EXPECT_EQ(Completed<Daemon>({"--log_level", "="}),
            "trace\ndebug\ninfo\nwarning\nerror\noff\n");
  EXPECT_EQ(Completed<Daemon>({"--log_level", "=", "d"}), "debug\n");
  EXPECT_EQ(Completed<Daemon>({"--log_level", "=", "debug", "--lo"}),
            "--log_level\n");
  EXPECT_EQ(Completed<Daemon>({"--secret_file", "/e"}), ":files");
  EXPECT_EQ(Completed<Daemon>({"--secret_file", "=", "/e"}), ":files");
  EXPECT_EQ(Completed<Daemon>({"--listen", ""}), "");
  EXPECT_EQ(Completed<Daemon>({"--completion", ""}), "bash\nzsh\n");
}

TEST(CompletionTest, CommandsAndPrograms) {
  EXPECT_EQ(Completed<Control>({""}), "status\nevents\nabort\n");
  EXPECT_EQ(Completed<Control>({"--coordinator", "h:1", "e"}), "events\n");
  EXPECT_EQ(Completed<Control>({"events", "--"}),
            "--follow\n--last\n--json\n--coordinator\n--version\n--help\n"
            "--completion\n--flagfile\n");
  EXPECT_THAT(Completed<Control>({"abort", "--"}), Not(HasSubstr("--follow")));
  EXPECT_EQ(Completed<Control>({"abort", ""}), "");
  EXPECT_EQ(Completed<Runner>({"-np", "2", "py"}), ":commands");
  EXPECT_EQ(Completed<Runner>({"--agent", ""}), ":commands");
  EXPECT_EQ(Completed<Runner>({"-np", "2", "python3", "--no"}), ":files");
}

TEST(CompletionTest, Scripts) {
  const std::string bash = Answer<Daemon>({"--completion=bash"});
  EXPECT_THAT(bash,
              HasSubstr("\ncomplete -F _maypole_daemon maypole-daemon\n"));
  EXPECT_THAT(Answer<Control>({"--completion", "zsh"}),
              AllOf(HasSubstr("#compdef control\n"),
                    HasSubstr("\ncompdef _control control\n")));
  EXPECT_EQ(Refused<Daemon>({"--completion=fish"}),
            "--completion: expected bash or zsh, got \"fish\"");
}

}  // namespace
}  // namespace maypole
