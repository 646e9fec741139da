#include "client/launcher/options.h"

#include <gtest/gtest.h>

namespace maypole::launcher {
namespace {

using Args = std::vector<std::string>;

Options Parsed(const Args& args) {
  Options options;
  Status status = ParseOptions(args, "vm7", &options);
  EXPECT_TRUE(status.ok()) << status.message();
  return options;
}

std::string Refused(const Args& args) {
  Options options;
  Status status = ParseOptions(args, "vm7", &options);
  EXPECT_FALSE(status.ok());
  return status.message();
}

TEST(OptionsTest, HorovodSpellingsOfTheNumberOfRanks) {
  for (const Args& args :
       {Args{"-np", "4", "train"}, Args{"-np=4", "train"},
        Args{"--np", "4", "train"}, Args{"-n", "4", "train"},
        Args{"-np4", "train"}, Args{"-n4", "train"}, Args{"-n=4", "train"},
        Args{"--np=4", "train"}, Args{"--num-proc", "4", "train"},
        Args{"--num-proc=4", "train"}}) {
    Options o = Parsed(args);
    EXPECT_EQ(o.ranks, 4) << args[0];
    EXPECT_EQ(o.command, Args{"train"}) << args[0];
  }
}

TEST(OptionsTest, TheCommandKeepsItsOwnOptions) {
  Options o =
      Parsed({"-np", "2", "python3", "train.py", "--nodes", "7", "-np"});
  EXPECT_EQ(o.nodes, 1);
  EXPECT_EQ(o.command, (Args{"python3", "train.py", "--nodes", "7", "-np"}));
  o = Parsed({"-np", "2", "--", "--odd-name", "-x"});
  EXPECT_EQ(o.command, (Args{"--odd-name", "-x"}));
}

TEST(OptionsTest, Defaults) {
  Options o = Parsed({"-np", "1", "true"});
  EXPECT_EQ(o.nodes, 1);
  EXPECT_EQ(o.start_timeout_s, 120);
  EXPECT_TRUE(o.prefix);
  EXPECT_FALSE(o.verbose);
  EXPECT_TRUE(o.coordinator.empty());
}

TEST(OptionsTest, AllOptions) {
  Options o =
      Parsed({"-np", "4", "--nodes", "2", "--coordinator", "[::1]:40",
              "--secret-file", "s", "--start-timeout", "9", "--verbose",
              "--no-prefix", "--output-filename", "d", "--endpoints-file", "e",
              "--network-addresses", "10.0.0.1,10.0.0.2", "cmd"});
  EXPECT_EQ(o.nodes, 2);
  EXPECT_EQ(o.coordinator, "[::1]:40");
  EXPECT_EQ(o.secret_file, "s");
  EXPECT_EQ(o.start_timeout_s, 9);
  EXPECT_TRUE(o.verbose);
  EXPECT_FALSE(o.prefix);
  EXPECT_EQ(o.output_directory, "d");
  EXPECT_EQ(o.endpoints_file, "e");
  EXPECT_EQ(o.networks, (Args{"10.0.0.1", "10.0.0.2"}));
}

TEST(OptionsTest, HelpAndVersionNeedNothingElse) {
  EXPECT_TRUE(Parsed({"--help"}).help);
  EXPECT_TRUE(Parsed({"-h"}).help);
  EXPECT_TRUE(Parsed({"--version"}).version);
  EXPECT_TRUE(Parsed({"-v"}).version);
  EXPECT_FALSE(Parsed({"--verbose", "-np", "1", "x"}).version);
}

TEST(OptionsTest, RefusalsSayWhatToDo) {
  EXPECT_EQ(Refused({"true"}), "say how many ranks to start: -np N");
  EXPECT_NE(Refused({"-np", "2"}).find("maypolerun -np 2 python3 train.py"),
            std::string::npos);
  EXPECT_EQ(Refused({"-np", "two", "x"}),
            "-np takes a number from 1 to 4096, not 'two'");
  EXPECT_EQ(Refused({"-np", "0", "x"}),
            "-np takes a number from 1 to 4096, not '0'");
  EXPECT_EQ(Refused({"-np", "99999999999", "x"}),
            "-np takes a number from 1 to 4096, not '99999999999'");
  EXPECT_EQ(Refused({"-np"}), "option '-np' needs a value");
  EXPECT_NE(Refused({"-np", "1", "--bogus", "x"}).find("'--bogus'"),
            std::string::npos);
  EXPECT_EQ(Refused({"-np", "2", "--nodes", "3", "x"}),
            "--nodes 3 needs at least as many ranks, but -np is 2");
  EXPECT_NE(Refused({"-np", "65", "x"}).find("raise --nodes"),
            std::string::npos);
  EXPECT_NE(Refused({"-np", "2", "--coordinator", "host", "x"})
                .find("HOST:PORT, not 'host'"),
            std::string::npos);
  EXPECT_NE(Refused({"-np", "2", "--network-addresses", "a,b", "x"})
                .find("2 address(es) for --nodes 1"),
            std::string::npos);
  EXPECT_NE(Refused({"-np", "2", "--secret-file", "s", "x"})
                .find("goes with --coordinator"),
            std::string::npos);
}

TEST(OptionsTest, ThisHostMayBeNamed) {
  for (const char* hosts :
       {"localhost:4", "127.0.0.1:5", "vm7:4", "localhost:2,vm7:2"}) {
    Options o = Parsed({"-np", "4", "-H", hosts, "train"});
    EXPECT_EQ(o.nodes, 1) << hosts;
    EXPECT_EQ(o.command, Args{"train"}) << hosts;
  }
  EXPECT_EQ(Refused({"-np", "4", "-H", "localhost:3", "x"}),
            "-H has 3 slot(s), but -np is 4: give more slots or start fewer "
            "ranks");
  EXPECT_EQ(Refused({"-np", "1", "-H", "localhost", "x"}),
            "-H takes HOST:SLOTS, not 'localhost'");
  EXPECT_EQ(Refused({"-np", "1", "-H", "localhost:x", "x"}),
            "-H localhost:SLOTS takes a number from 1 to 4096, not 'x'");
  EXPECT_NE(
      Refused({"-np", "2", "-H", "vm7:1,other:1", "x"}).find("not there yet"),
      std::string::npos);
}

TEST(OptionsTest, AnAttachedNumberIsChecked) {
  EXPECT_EQ(Refused({"-np0", "x"}),
            "-np takes a number from 1 to 4096, not '0'");
  EXPECT_NE(Refused({"-np4x", "x"}).find("'-np4x'"), std::string::npos);
}

TEST(OptionsTest, HostsAreNotThereYet) {
  for (const char* flag : {"-H", "--hosts", "--hostfile"}) {
    EXPECT_NE(Refused({"-np", "2", flag, "a:1,b:1", "x"}).find("not there yet"),
              std::string::npos)
        << flag;
  }
}

}  // namespace
}  // namespace maypole::launcher
