#include "client/launcher/command/options.h"

#include <gtest/gtest.h>

#include <map>

#include "common/version.h"

namespace maypole::launcher {
namespace {

using Args = std::vector<std::string>;
using Environment = std::map<std::string, std::string>;

Status Parse(const Args& args, LauncherOptions* options,
             const Environment& environment = {}) {
  return ParseOptions(
      args,
      {.is_here =
           [](const std::string& name) {
             return name == "vm7" || name == "localhost" || name == "127.0.0.1";
           },
       .read_file =
           [](const std::string& path, std::string* out) {
             if (path == "/m/horovod_shim/horovod/__init__.py") return Status();
             if (path == "c.yaml") {
               *out =
                   "params:\n  fusion_threshold_mb: 32\n  cycle_time_ms: 5\n"
                   "stall_check:\n  enabled: no\n"
                   "  warning_time_seconds: 7\n";
               return Status();
             }
             if (path == "bad.yaml") {
               *out = "logging:\n  level: LOUD\n";
               return Status();
             }
             if (path != "hosts") return Status(Code::kNotFound, path + "?");
             *out = "vm7 slots=2\nb slots=2\nc slots=2\n";
             return Status();
           },
       .variable =
           [&](const char* name) {
             const auto it = environment.find(name);
             return it == environment.end() ? nullptr : it->second.c_str();
           }},
      options);
}

// "vm7:2*,b:1": the ranks of each host; '*' marks this machine.
std::string Hosts(const LauncherOptions& o) {
  std::string text;
  for (const Host& h : o.hosts) {
    text += (text.empty() ? "" : ",") + h.name + ":" + std::to_string(h.slots) +
            (h.here ? "*" : "");
  }
  return text;
}

LauncherOptions Parsed(const Args& args) {
  LauncherOptions options;
  Status status = Parse(args, &options);
  EXPECT_TRUE(status.ok()) << status.message();
  return options;
}

std::string Refused(const Args& args) {
  LauncherOptions options;
  Status status = Parse(args, &options);
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
    LauncherOptions o = Parsed(args);
    EXPECT_EQ(o.ranks, 4) << args[0];
    EXPECT_EQ(o.command, Args{"train"}) << args[0];
  }
}

TEST(OptionsTest, TheShimIsBesideThePackageOrWhereTheUserSays) {
  LauncherOptions o;
  const Args args = {"-np", "2", "--horovod-shim", "x"};
  for (const char* path : {"/m", "/other:/m", ":/other::/m:"}) {
    EXPECT_TRUE(Parse(args, &o, {{"PYTHONPATH", path}}).ok()) << path;
    EXPECT_EQ(o.shim_directory, "/m/horovod_shim") << path;
    EXPECT_EQ(o.command, Args{"x"});
  }
  for (const char* path : {"", "/other", "/m2:"}) {
    Status status = Parse(args, &o, {{"PYTHONPATH", path}});
    EXPECT_EQ(status.message().find("--horovod-shim: no directory of"), 0u);
  }
  o = Parsed({"-np", "2", "--horovod-shim=/m/horovod_shim", "x"});
  EXPECT_EQ(o.shim_directory, "/m/horovod_shim");
  EXPECT_EQ(Refused({"-np", "2", "--horovod-shim=/n", "x"}),
            "--horovod-shim=/n: no package horovod is in this directory");
  EXPECT_EQ(Parsed({"-np", "2", "x"}).shim_directory, "");
}

TEST(OptionsTest, TheCommandKeepsItsOwnOptions) {
  LauncherOptions o =
      Parsed({"-np", "2", "python3", "train.py", "--nodes", "7", "-np"});
  EXPECT_EQ(o.hosts.size(), 1u);
  EXPECT_EQ(o.command, (Args{"python3", "train.py", "--nodes", "7", "-np"}));
  o = Parsed({"-np", "2", "--", "--odd-name", "-x"});
  EXPECT_EQ(o.command, (Args{"--odd-name", "-x"}));
}

TEST(OptionsTest, Defaults) {
  LauncherOptions o = Parsed({"-np", "1", "true"});
  EXPECT_EQ(o.hosts.size(), 1u);
  EXPECT_EQ(o.start_timeout_s, 120);
  EXPECT_TRUE(o.prefix);
  EXPECT_FALSE(o.verbose);
  EXPECT_TRUE(o.coordinator.empty());
}

TEST(OptionsTest, AllOptions) {
  LauncherOptions o =
      Parsed({"-np", "4", "--nodes", "2", "--coordinator", "[::1]:40",
              "--secret-file", "s", "--start-timeout", "9", "--verbose",
              "--no-prefix", "--output-filename", "d", "--endpoints-file", "e",
              "--network-addresses", "10.0.0.1,10.0.0.2", "cmd"});
  EXPECT_EQ(Hosts(o), "node0:2*,node1:2*");
  EXPECT_EQ(o.coordinator, "[::1]:40");
  EXPECT_EQ(o.secret_file, "s");
  EXPECT_EQ(o.start_timeout_s, 9);
  EXPECT_TRUE(o.verbose);
  EXPECT_FALSE(o.prefix);
  EXPECT_EQ(o.output_directory, "d");
  EXPECT_EQ(o.endpoints_file, "e");
  EXPECT_EQ(o.networks, (Args{"10.0.0.1", "10.0.0.2"}));
}

TEST(OptionsTest, TheStartTimeoutMayStandInTheEnvironment) {
  const auto timeout = [](const Environment& environment, Args args = {}) {
    args.insert(args.end(), {"-np", "2", "cmd"});
    LauncherOptions o;
    EXPECT_TRUE(Parse(args, &o, environment).ok());
    return o.start_timeout_s;
  };
  EXPECT_EQ(timeout({{"HOROVOD_START_TIMEOUT", "30"}}), 30);
  EXPECT_EQ(timeout({{"HOROVOD_START_TIMEOUT", "30"},
                     {"MAYPOLE_START_TIMEOUT", "7"}}),
            7);
  EXPECT_EQ(timeout({{"MAYPOLE_START_TIMEOUT", ""}}), 120);
  EXPECT_EQ(timeout({{"MAYPOLE_START_TIMEOUT", "x"}}, {"--start-timeout", "9"}),
            9);
  LauncherOptions o;
  EXPECT_EQ(Parse({"-np", "2", "cmd"}, &o, {{"MAYPOLE_START_TIMEOUT", "1.5"}})
                .message(),
            "MAYPOLE_START_TIMEOUT: expected an integer from 1 to 86400, got "
            "\"1.5\"");
}

TEST(OptionsTest, TheJobsName) {
  EXPECT_EQ(Parsed({"-np", "2", "cmd"}).job_name, "");
  const std::string longest(54, 'x');
  EXPECT_EQ(Parsed({"-np", "2", "--job-name", longest, "cmd"}).job_name,
            longest);
  EXPECT_EQ(Parsed({"-np", "2", "--job-name=res-net_5.0", "cmd"}).job_name,
            "res-net_5.0");
  EXPECT_EQ(Parsed({"-np", "2", "--job-name=team:net", "cmd"}).job_name,
            "team:net");
  for (const std::string& bad :
       {std::string(), longest + "x", std::string("a b"), std::string("../x"),
        std::string("a\nb"), std::string("\xc3\xa4")}) {
    const std::string refused = Refused({"-np", "2", "--job-name", bad, "cmd"});
    EXPECT_NE(refused.find("--job-name must be 1 to 54 printable ASCII "
                           "characters without spaces, quotes, slashes and "
                           "backslashes, not '"),
              std::string::npos)
        << refused;
  }
}

TEST(OptionsTest, HelpAndVersionNeedNothingElse) {
  for (const char* flag : {"--help", "-h", "-help"}) {
    const std::string help = Parsed({flag}).answer.value();
    for (const char* part :
         {"maypolerun -np N [options]", "-np, -n, --num-proc=N",
          "--start-timeout=SECONDS", "$HOROVOD_START_TIMEOUT", "120]",
          "--agent[=SOCKET]", "Exit status: 0 if"}) {
      EXPECT_NE(help.find(part), std::string::npos) << part;
    }
    EXPECT_EQ(help.find("--node-of-job"), std::string::npos);
    EXPECT_EQ(help.find("--node-service"), std::string::npos);
    for (size_t at = 0; at < help.size(); at = help.find('\n', at) + 1) {
      EXPECT_LE(help.find('\n', at) - at, 80u) << help.substr(at, 90);
    }
  }
  const std::string version = std::string("maypolerun ") + kVersion + "\n";
  EXPECT_EQ(Parsed({"--version"}).answer, version);
  EXPECT_EQ(Parsed({"-v"}).answer, version);
  EXPECT_FALSE(Parsed({"--verbose", "-np", "1", "x"}).answer);
}

TEST(OptionsTest, RefusalsSayWhatToDo) {
  EXPECT_EQ(Refused({"true"}), "say how many ranks to start: -np N");
  EXPECT_NE(Refused({"-np", "2"}).find("maypolerun -np 2 python3 train.py"),
            std::string::npos);
  EXPECT_EQ(Refused({"-np", "two", "x"}),
            "-np: expected an integer from 1 to 16384, got \"two\"");
  EXPECT_EQ(Refused({"-np", "0", "x"}),
            "-np: expected an integer from 1 to 16384, got \"0\"");
  EXPECT_EQ(Refused({"-np", "99999999999", "x"}),
            "-np: expected an integer from 1 to 16384, got \"99999999999\"");
  EXPECT_EQ(Refused({"-np"}),
            "-np: expected an integer from 1 to 16384; see --help");
  EXPECT_NE(Refused({"-np", "1", "--bogus", "x"}).find("'--bogus'"),
            std::string::npos);
  EXPECT_EQ(Refused({"-np", "2", "--nodes", "3", "x"}),
            "--nodes 3 needs at least as many ranks, but -np is 2");
  EXPECT_NE(Refused({"-np", "65", "x"}).find("raise --nodes"),
            std::string::npos);
  EXPECT_EQ(Parsed({"-np", "2", "--coordinator", "a:1,b:2", "x"}).coordinator,
            "a:1,b:2");
  for (const char* list : {"a:1,", "a:1,b", ",a:1"}) {
    EXPECT_NE(Refused({"-np", "2", "--coordinator", list, "x"})
                  .find("--coordinator takes HOST:PORT, not '"),
              std::string::npos)
        << list;
  }
  EXPECT_NE(Refused({"-np", "2", "--coordinator", "host", "x"})
                .find("HOST:PORT, not 'host'"),
            std::string::npos);
  EXPECT_NE(Refused({"-np", "2", "--network-addresses", "a,b", "x"})
                .find("2 address(es) for --nodes 1"),
            std::string::npos);
  EXPECT_NE(Refused({"-np", "2", "--secret-file", "s", "x"})
                .find("requires --coordinator"),
            std::string::npos);
}

TEST(OptionsTest, ReadsWhatGetoptHasRead) {
  // One dash or two, '-' or '_', an unambiguous beginning of the name.
  EXPECT_EQ(Parsed({"-np2", "-nodes", "2", "x"}).hosts.size(), 2u);
  EXPECT_EQ(Parsed({"-np2", "--start=9", "x"}).start_timeout_s, 9);
  EXPECT_EQ(Parsed({"-np2", "--co", "h:1", "x"}).coordinator, "h:1");
  EXPECT_TRUE(Parsed({"-np2", "--a", "x"}).running_agents);
  EXPECT_EQ(Parsed({"-np2", "--job_name=j", "x"}).job_name, "j");
  EXPECT_TRUE(Parsed({"-cb"}).check_build);
  EXPECT_EQ(Hosts(Parsed({"-H", "b:1", "--hosts", "c:1", "x"})), "b:1,c:1");
  EXPECT_EQ(Parsed({"-np", "1", "--host-file=hosts", "x"}).ranks, 1);
  EXPECT_EQ(Refused({"-np2", "--host", "b:2", "x"}).find("there is no flag"),
            0u);
  EXPECT_NE(Refused({"-np2", "--netwrok-addresses=a", "x"})
                .find("did you mean '--network-addresses'?"),
            std::string::npos);
}

TEST(OptionsTest, GpuSite) {
  using Variables = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(Parsed({"-np2", "x"}).environment, Variables());
  EXPECT_EQ(Parsed({"-np2", "--gpu-site=agent", "x"}).environment,
            (Variables{{"MAYPOLE_GPU_SITE", "agent"}}));
  EXPECT_EQ(Parsed({"-np2", "--gpu-site", "client", "x"}).environment,
            (Variables{{"MAYPOLE_GPU_SITE", "client"}}));
  EXPECT_EQ(Refused({"-np2", "--gpu-site=gpu", "x"}),
            "--gpu-site='gpu': expected auto, agent, client, or host (copies "
            "through host memory)");
}

TEST(OptionsTest, Checksums) {
  using Variables = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(Parsed({"-np2", "x"}).environment, Variables());
  EXPECT_EQ(Parsed({"-np2", "--checksums", "x"}).environment,
            (Variables{{"MAYPOLE_CHECKSUMS", "1"}}));
  EXPECT_EQ(Parsed({"-np2", "--checksums=warn", "x"}).environment,
            (Variables{{"MAYPOLE_CHECKSUMS", "warn"}}));
  EXPECT_EQ(Refused({"-np2", "--checksums=2", "x"}),
            "--checksums='2': expected 1 (results that differ end the job), "
            "warn (they are only reported), or 0 (they are not compared)");
}

TEST(OptionsTest, Encryption) {
  using Variables = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(Parsed({"-np2", "--encrypt", "x"}).environment,
            (Variables{{"MAYPOLE_NETWORK_ENCRYPTION", "require"}}));
  EXPECT_EQ(Parsed({"-np2", "--encrypt=on", "x"}).environment,
            (Variables{{"MAYPOLE_NETWORK_ENCRYPTION", "on"}}));
  EXPECT_EQ(Refused({"-np2", "--encrypt=yes", "x"}),
            "--encrypt='yes': expected off, on (nodes that both encrypt do) or "
            "require (a node that does not encrypt is refused)");
}

TEST(OptionsTest, BindGpus) {
  EXPECT_TRUE(Parsed({"-np2", "--bind-gpus", "x"}).bind_gpus);
  EXPECT_FALSE(Parsed({"-np2", "x"}).bind_gpus);
}

TEST(OptionsTest, FlagsOfTheAgents) {
  const LauncherOptions o =
      Parsed({"-np2", "--agent-flag=--slots=64", "--arena-bytes", "4096",
              "--agent-flag", "--ring_depth=4", "x"});
  EXPECT_EQ(o.agent_flags,
            (Args{"--slots=64", "--ring_depth=4", "--arena_bytes=4096"}));
  EXPECT_EQ(o.command, Args{"x"});
  EXPECT_TRUE(Parsed({"-np2", "x"}).agent_flags.empty());
  EXPECT_NE(Refused({"-np2", "--arena-bytes=1e9", "x"})
                .find("--arena-bytes: expected an integer from 0 to "),
            std::string::npos);
  EXPECT_NE(Refused({"-np2", "--agent", "--arena-bytes=0", "x"})
                .find("leave --agent-flag and --arena-bytes out"),
            std::string::npos);
}

TEST(OptionsTest, FlagsOfTheCoordinator) {
  EXPECT_EQ(Parsed({"-np2", "--coordinator-flag=--frozen_nodes=0", "x"})
                .coordinator_flags,
            Args{"--frozen_nodes=0"});
  EXPECT_NE(Refused({"-np2", "--coordinator=h:1", "--secret-file=s",
                     "--coordinator-flag=--frozen_nodes=0", "x"})
                .find("leave --coordinator-flag out"),
            std::string::npos);
  // Flags that maypolerun adds itself are no reason to refuse.
  Parsed({"-np2", "--coordinator=h:1", "--secret-file=s", "--log-level=INFO",
          "x"});
}

TEST(OptionsTest, WhatMaypolerunStartsItselfWith) {
  EXPECT_TRUE(Parsed({"--node-of-job"}).node_of_job);
  EXPECT_EQ(Parsed({"--node-service", "/d"}).service_directory, "/d");
}

TEST(OptionsTest, ThisHostMayBeNamed) {
  for (const char* hosts :
       {"localhost:4", "127.0.0.1:5", "vm7:4", "localhost:2,vm7:2"}) {
    LauncherOptions o = Parsed({"-np", "4", "-H", hosts, "train"});
    EXPECT_EQ(o.hosts.size(), 1u) << hosts;
    EXPECT_EQ(o.command, Args{"train"}) << hosts;
  }
  EXPECT_EQ(Refused({"-np", "4", "-H", "localhost:3", "x"}),
            "-H has 3 slot(s), but -np is 4: give more slots or start fewer "
            "ranks");
  EXPECT_EQ(Parsed({"-H", "localhost:3", "x"}).ranks, 3);
  EXPECT_EQ(Hosts(Parsed({"-np", "4", "-H", "vm7:4", "--nodes", "2", "x"})),
            "node0:2*,node1:2*");
}

TEST(OptionsTest, AnAttachedNumberIsChecked) {
  EXPECT_EQ(Refused({"-np0", "x"}),
            "-np: expected an integer from 1 to 16384, got \"0\"");
  EXPECT_NE(Refused({"-np4x", "x"}).find("'-np4x'"), std::string::npos);
}

TEST(OptionsTest, OtherHosts) {
  LauncherOptions o = Parsed({"-np", "3", "-H", "a:2,b:2,c:2", "x"});
  EXPECT_EQ(Hosts(o), "a:2,b:1");
  o = Parsed({"-H", "vm7:2,b:2,localhost:1", "x"});
  EXPECT_EQ(o.ranks, 5);
  EXPECT_EQ(Hosts(o), "vm7:3*,b:2");
  EXPECT_EQ(Hosts(Parsed({"--hosts", "b:2", "x"})), "b:2");
  // The other host gets no rank: all ranks run on this machine.
  EXPECT_EQ(Hosts(Parsed({"-np", "2", "-H", "vm7:2,b:2", "x"})), "node0:2*");
}

TEST(OptionsTest, AHostFile) {
  LauncherOptions o = Parsed({"-np", "5", "--hostfile", "hosts", "x"});
  EXPECT_EQ(Hosts(o), "vm7:2*,b:2,c:1");
  EXPECT_EQ(Refused({"--hostfile", "none", "x"}), "none?");
  EXPECT_EQ(Refused({"-H", "b:1", "--hostfile", "hosts", "x"}),
            "give either -H or --hostfile, not both");
  EXPECT_EQ(Refused({"-np", "7", "--hostfile", "hosts", "x"}),
            "--hostfile has 6 slot(s), but -np is 7: give more slots or start "
            "fewer ranks");
}

TEST(OptionsTest, SshAndAgents) {
  LauncherOptions o =
      Parsed({"-H", "b:2", "-p", "2222", "-i", "key", "--remote-bin",
              "/opt/bin", "--network-interfaces", "eth0,eth1", "x"});
  EXPECT_EQ(o.ssh_port, 2222);
  EXPECT_EQ(o.identity_file, "key");
  EXPECT_EQ(o.remote_bin, "/opt/bin");
  EXPECT_EQ(o.interfaces, (Args{"eth0", "eth1"}));
  EXPECT_FALSE(o.running_agents);
  EXPECT_EQ(Parsed({"-H", "b:2", "--ssh-port=22", "--ssh-identity-file=k", "x"})
                .ssh_port,
            22);
  o = Parsed({"-np", "2", "--agent", "x"});
  EXPECT_TRUE(o.running_agents);
  EXPECT_EQ(o.agent_socket, "");
  EXPECT_EQ(Parsed({"-np", "2", "--agent=/a", "x"}).agent_socket, "/a");
  EXPECT_TRUE(Parsed({"--check-build"}).check_build);
}

TEST(OptionsTest, WhatOtherHostsCannotDo) {
  EXPECT_EQ(Refused({"-np", "2", "-H", "b:2", "--nodes", "2", "x"}),
            "--nodes divides this machine only; with other hosts in -H each "
            "host is a node");
  EXPECT_EQ(Refused({"-H", "b:65", "x"}),
            "b has 65 ranks, but the limit of one host is 64: give more hosts");
  EXPECT_EQ(
      Refused({"-H", "vm7:1,b:1", "--coordinator", "127.0.0.1:4001", "x"}),
      "--coordinator 127.0.0.1:4001 is a loopback address: give an address "
      "that b can reach");
  EXPECT_NE(Refused({"-np", "2", "--agent", "--coordinator", "h:1", "x"})
                .find("leave --coordinator"),
            std::string::npos);
  EXPECT_NE(Refused({"-H", "a:1,b:1", "--network-addresses", "10.0.0.1", "x"})
                .find("1 address(es) for hosts: 2"),
            std::string::npos);
  EXPECT_EQ(Refused({"-np", "1", "-p", "0", "x"}),
            "-p: expected an integer from 1 to 65535, got \"0\"");
}

// "2 1..4 vm7:4*": ranks of the first start, limits, slots of the hosts.
std::string Elastic(const Args& args) {
  LauncherOptions o;
  if (Status s = Parse(args, &o); !s.ok()) return s.message();
  if (!o.elastic) return "not elastic";
  std::string text = std::to_string(o.ranks) + " " +
                     std::to_string(o.elastic->min_size) + ".." +
                     std::to_string(o.elastic->max_size);
  for (const Host& h : o.elastic->hosts) {
    text += " " + h.name + ":" + std::to_string(h.slots) + (h.here ? "*" : "");
  }
  return text;
}

TEST(OptionsTest, ElasticJobs) {
  EXPECT_EQ(Elastic({"-np", "2", "x"}), "not elastic");
  EXPECT_EQ(Elastic({"-np", "3", "--min-np", "2", "x"}), "3 2..3 localhost:3*");
  EXPECT_EQ(Elastic({"--min-np", "2", "--max-np", "4", "x"}),
            "2 2..4 localhost:4*");
  EXPECT_EQ(Elastic({"-np", "2", "--max-np", "4", "-H", "a:2,b:1", "x"}),
            "2 2..4 a:2 b:1");
  EXPECT_EQ(Elastic({"--min-num-proc=2", "--hostfile=hosts", "x"}),
            "2 2..6 vm7:2* b:2 c:2");
  EXPECT_EQ(Elastic({"-np", "2", "--host-discovery-script", "d", "x"}),
            "2 2.." + std::to_string(kMaxRanks));
}

TEST(OptionsTest, ElasticJobsThatCannotBe) {
  EXPECT_EQ(Elastic({"-np", "3", "--min-np", "4", "x"}),
            "--min-np 4, -np 3, --max-np 4 and the hosts' 4 slots must be in "
            "ascending order (the last two may be in any)");
  EXPECT_EQ(Elastic({"--min-np", "3", "-H", "a:2", "x"}),
            "--min-np 3, -np 3, --max-np 2 and the hosts' 2 slots must be in "
            "ascending order (the last two may be in any)");
  EXPECT_EQ(Elastic({"--min-np", "1", "--nodes", "2", "x"}),
            "--nodes and --network-addresses are for jobs with fixed nodes, "
            "not for elastic ones");
  EXPECT_EQ(Elastic({"--host-discovery-script", "d", "-H", "a:2", "x"}),
            "give either --host-discovery-script or hosts (-H, --hostfile), "
            "not both");
  EXPECT_EQ(Elastic({"--min-np", "1"}),
            "say what to run after the options, for example: maypolerun -np 1 "
            "python3 train.py");
}

TEST(OptionsTest, CooldownTakesTwoWords) {
  LauncherOptions o;
  const Args job = {"--min-np", "1", "--blacklist-cooldown-range"};
  for (const Args& range : {Args{"5", "90"}, Args{"5,90"}}) {
    Args args = job;
    args.insert(args.end(), range.begin(), range.end());
    args.push_back("x");
    ASSERT_TRUE(Parse(args, &o).ok());
    EXPECT_EQ(o.elastic->cooldown_s, (std::vector<int>{5, 90}));
    EXPECT_EQ(o.command, Args{"x"});
  }
  EXPECT_EQ(
      Elastic({"--min-np=1", "--blacklist-cooldown-range", "9", "5", "x"}),
      "--blacklist-cooldown-range: MIN is larger than MAX");
  EXPECT_EQ(Elastic({"--min-np=1", "--blacklist-cooldown-range=7", "x"}),
            "--blacklist-cooldown-range takes two numbers: MIN MAX");
}

TEST(OptionsTest, TranslatesOptionsOfHorovodrun) {
  LauncherOptions o;
  const Status s =
      Parse({"-np", "2", "--fusion-threshold-mb", "32", "--no-stall-check",
             "--stall-check-warning-time-seconds=7",
             "--stall-check-shutdown-time-seconds=0",
             "--gloo-timeout-seconds=20", "--log-level", "TRACE",
             "--timeline-filename", "t.json", "--timeline-mark-cycles",
             "--network-interface", "e0", "--network-interface", "e1", "x"},
            &o);
  ASSERT_TRUE(s.ok()) << s.message();
  using Variables = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(o.environment,
            (Variables{{"MAYPOLE_FUSION_THRESHOLD", "33554432"},
                       {"MAYPOLE_STALL_CHECK_DISABLE", "1"},
                       {"MAYPOLE_STALL_CHECK_TIME_SECONDS", "7"},
                       {"MAYPOLE_STALL_SHUTDOWN_TIME_SECONDS", "0"},
                       {"MAYPOLE_TIMELINE", "t.json"},
                       {"MAYPOLE_TIMELINE_MARK_CYCLES", "1"},
                       {"MAYPOLE_LOG_LEVEL", "TRACE"}}));
  EXPECT_EQ(o.agent_flags,
            (Args{"--network_timeout=20s", "--log_level=debug"}));
  EXPECT_EQ(o.coordinator_flags, Args{"--log_level=debug"});
  EXPECT_EQ(o.interfaces, (Args{"e0", "e1"}));
}

TEST(OptionsTest, LogsAndAffinityAreOptionsOrVariables) {
  using Variables = std::vector<std::pair<std::string, std::string>>;
  LauncherOptions o;
  const auto parsed = [&](const Args& args, const Environment& environment) {
    Args all = {"-np", "2"};
    all.insert(all.end(), args.begin(), args.end());
    all.push_back("x");
    const Status s = Parse(all, &o, environment);
    return s.ok() ? "" : s.message();
  };
  EXPECT_EQ(parsed({}, {{"HOROVOD_LOG_LEVEL", "fatal"},
                        {"HOROVOD_LOG_HIDE_TIME", "1"}}),
            "");
  EXPECT_EQ(o.agent_flags, (Args{"--log_hide_time", "--log_level=error"}));
  EXPECT_EQ(o.coordinator_flags, o.agent_flags);
  EXPECT_TRUE(o.environment.empty());
  EXPECT_EQ(
      parsed({"--log-level=INFO", "--log-with-timestamp"},
             {{"MAYPOLE_LOG_LEVEL", "error"}, {"MAYPOLE_LOG_HIDE_TIME", "1"}}),
      "");
  EXPECT_EQ(o.agent_flags, Args{"--log_level=info"});
  EXPECT_EQ(o.environment, (Variables{{"MAYPOLE_LOG_LEVEL", "INFO"}}));
  EXPECT_EQ(parsed({"--verbose", "--log-hide-timestamp"},
                   {{"MAYPOLE_LOG_LEVEL", "error"}}),
            "");
  EXPECT_EQ(o.agent_flags, Args{"--log_hide_time"});
  EXPECT_EQ(parsed({"--agent"}, {{"MAYPOLE_LOG_LEVEL", "error"}}), "");
  EXPECT_EQ(parsed({}, {{"HOROVOD_LOG_LEVEL", "4"}}),
            "HOROVOD_LOG_LEVEL='4': expected trace, debug, info, warning, "
            "error or fatal");
  EXPECT_EQ(parsed({"--thread-affinity", "0,1"}, {}), "");
  EXPECT_EQ(o.environment, (Variables{{"MAYPOLE_THREAD_AFFINITY", "0,1"}}));
  EXPECT_EQ(parsed({"--thread-affinity", "0;1"}, {}),
            "--thread-affinity='0;1': expected the numbers of processors, "
            "separated by commas, one for each rank of a node");
}

TEST(OptionsTest, TheCommandLinePrevailsOverTheConfigFile) {
  using Variables = std::vector<std::pair<std::string, std::string>>;
  LauncherOptions o = Parsed({"-np", "2", "--config-file", "c.yaml", "x"});
  EXPECT_EQ(o.environment,
            (Variables{{"MAYPOLE_FUSION_THRESHOLD", "33554432"},
                       {"MAYPOLE_STALL_CHECK_DISABLE", "1"},
                       {"MAYPOLE_STALL_CHECK_TIME_SECONDS", "7"}}));
  EXPECT_EQ(o.notes.size(), 1u);
  EXPECT_EQ(o.command, Args{"x"});
  o = Parsed({"--fusion-threshold-mb=1", "-np", "2", "--stall-check",
              "--config-file=c.yaml", "x"});
  EXPECT_EQ(o.environment,
            (Variables{{"MAYPOLE_FUSION_THRESHOLD", "1048576"},
                       {"MAYPOLE_STALL_CHECK_TIME_SECONDS", "7"}}));
}

TEST(OptionsTest, ErrorsOfTheConfigFile) {
  EXPECT_EQ(Refused({"-np", "2", "--config-file=bad.yaml", "x"}),
            "bad.yaml:2: logging.level: expected DEBUG, INFO, WARNING or "
            "ERROR, got \"LOUD\"");
  EXPECT_EQ(Refused({"-np", "2", "--config-file=none.yaml", "x"}),
            "none.yaml?");
  EXPECT_EQ(Refused({"--config-file=c.yaml", "x"}),
            "say how many ranks to start: -np N");
}

TEST(OptionsTest, AcceptsOptionsOfHorovodrunWithoutEffect) {
  LauncherOptions o;
  const Status s =
      Parse({"-np", "2", "--gloo", "--disable-cache", "--cycle-time-ms", "3.5",
             "--cache-capacity=0", "--autotune", "--autotune-log-file", "f",
             "--no-hierarchical-allreduce", "--mpi-args=-x A", "--tcp", "x"},
            &o);
  ASSERT_TRUE(s.ok()) << s.message();
  EXPECT_EQ(o.command, Args{"x"});
  EXPECT_TRUE(o.environment.empty());
  EXPECT_TRUE(o.agent_flags.empty());
  // One note for each reason; none for options that ask for what Maypole does
  // anyway.
  ASSERT_EQ(o.notes.size(), 4u);
  EXPECT_EQ(o.notes[0],
            "--mpi-args, --tcp have no effect: Maypole does not use MPI; to "
            "have mpirun start the ranks, run mpirun itself");
  EXPECT_EQ(o.notes[1].find("--cycle-time-ms, --cache-capacity have no effect"),
            0u);
  EXPECT_EQ(o.notes[2].find("--no-hierarchical-allreduce has no effect: "), 0u);
  EXPECT_EQ(o.notes[3].find("--autotune, --autotune-log-file have no effect"),
            0u);
}

}  // namespace
}  // namespace maypole::launcher
