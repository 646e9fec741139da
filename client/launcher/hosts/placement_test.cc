#include "client/launcher/hosts/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "client/launcher/process/announcement.h"
#include "common/finished_file.h"
#include "common/limits.h"

namespace maypole::launcher {
namespace {

std::map<std::string, std::string> Map(const Variables& variables) {
  return {variables.begin(), variables.end()};
}

// The second of two nodes with two ranks each.
NodeJob SecondOfTwo() {
  NodeJob job;
  job.set_node(1);
  job.set_nodes(2);
  job.set_ranks(4);
  job.set_first_rank(2);
  job.set_local_size(2);
  job.set_job("j");
  job.set_token("t");
  job.set_start_timeout_s(7);
  return job;
}

RankSurroundings Around() {
  return {.usable_cores = 10, .ranks_here = 4, .agent = "/a1"};
}

bool NoneSet(const std::string&) { return false; }

TEST(PlacementTest, AJobsIdBeginsWithItsName) {
  EXPECT_EQ(JobId("", "0123456789abcdef01"), "0123456789abcdef");
  EXPECT_EQ(JobId("net", "0123456789abcdef01"), "net-01234567");
}

TEST(PlacementTest, EnvironmentOfARank) {
  auto v = Map(RankVariables(SecondOfTwo(), Around(), 3, 1, NoneSet));
  std::map<std::string, std::string> expected = {
      {"MAYPOLE_RANK", "3"},       {"MAYPOLE_SIZE", "4"},
      {"MAYPOLE_LOCAL_RANK", "1"}, {"MAYPOLE_LOCAL_SIZE", "2"},
      {"MAYPOLE_CROSS_RANK", "1"}, {"MAYPOLE_CROSS_SIZE", "2"},
      {"MAYPOLE_JOB", "j"},        {"MAYPOLE_TOKEN", "t"},
      {"MAYPOLE_AGENT", "/a1"},    {"MAYPOLE_START_TIMEOUT", "7"},
      {"MAYPOLE_NODE", "node1"},   {"PYTHONUNBUFFERED", "1"},
      {"OMP_NUM_THREADS", "2"},
  };
  EXPECT_EQ(v, expected);
}

TEST(PlacementTest, EnvironmentOfAProcessOfAnElasticJob) {
  NodeJob job = SecondOfTwo();
  job.set_elastic(true);
  job.set_min_size(2);
  job.set_max_size(5);
  RankSurroundings around = Around();
  around.directory = "/d";
  const Variables variables = RankVariables(job, around, 7, 1, NoneSet);
  auto v = Map(variables);
  EXPECT_EQ(v["MAYPOLE_MIN_SIZE"], "2");
  EXPECT_EQ(v["MAYPOLE_MAX_SIZE"], "5");
  EXPECT_EQ(v[kFinishedFileVariable], "/d/finished.7");
  EXPECT_FALSE(v.contains("MAYPOLE_RANK"));
}

TEST(PlacementTest, WhatIsSetForRanksIsOfAJob) {
  NodeJob job = SecondOfTwo();
  job.set_function("/f");
  for (const bool elastic : {false, true}) {
    job.set_elastic(elastic);
    for (const auto& [name, value] :
         RankVariables(job, Around(), 3, 1, NoneSet)) {
      EXPECT_TRUE(IsOfAJob(name) || !name.starts_with("MAYPOLE_")) << name;
    }
  }
  EXPECT_FALSE(IsOfAJob("MAYPOLE_LOG_LEVEL"));
}

TEST(PlacementTest, WhatTheUserSetStays) {
  auto v = Map(RankVariables(SecondOfTwo(), Around(), 2, 0,
                             [](const std::string&) { return true; }));
  EXPECT_FALSE(v.contains("PYTHONUNBUFFERED"));
  EXPECT_FALSE(v.contains("OMP_NUM_THREADS"));
  EXPECT_EQ(v["MAYPOLE_RANK"], "2");
}

TEST(PlacementTest, ARankIsBoundToTheGpuOfItsLocalRank) {
  RankSurroundings around = Around();
  around.gpus = {"4", "GPU-7"};
  for (const auto& [local, gpu] :
       {std::pair(0, "4"), std::pair(1, "GPU-7"), std::pair(2, "4")}) {
    EXPECT_EQ(Map(RankVariables(SecondOfTwo(), around, 2 + local, local,
                                NoneSet))["CUDA_VISIBLE_DEVICES"],
              gpu);
  }
}

TEST(PlacementTest, WithTheShimHorovodsVariablesAreSet) {
  NodeJob job = SecondOfTwo();
  RankSurroundings around = Around();
  EXPECT_FALSE(
      Map(RankVariables(job, around, 3, 1, NoneSet)).contains("PYTHONPATH"));
  job.set_horovod_shim("/m/horovod_shim");
  job.set_host("h2");
  auto v = Map(RankVariables(job, around, 3, 1, NoneSet));
  EXPECT_EQ(v["PYTHONPATH"], "/m/horovod_shim");
  for (const auto& [name, value] :
       {std::pair("RANK", "3"), std::pair("SIZE", "4"),
        std::pair("LOCAL_RANK", "1"), std::pair("LOCAL_SIZE", "2"),
        std::pair("CROSS_RANK", "1"), std::pair("CROSS_SIZE", "2"),
        std::pair("HOSTNAME", "h2")}) {
    EXPECT_EQ(v[std::string("HOROVOD_") + name], value) << name;
  }
  EXPECT_FALSE(v.contains("HOROVOD_JOB"));
  around.python_path = "/m:/n";
  EXPECT_EQ(Map(RankVariables(job, around, 3, 1, NoneSet))["PYTHONPATH"],
            "/m/horovod_shim:/m:/n");
}

TEST(PlacementTest, AJobInProcessHasNoAgent) {
  NodeJob job;
  job.set_ranks(1);
  job.set_nodes(1);
  auto v = Map(RankVariables(job, {}, 0, 0, NoneSet));
  EXPECT_FALSE(v.contains("MAYPOLE_AGENT"));
  EXPECT_EQ(v["OMP_NUM_THREADS"], "1");
}

TEST(AnnouncementTest, Parses) {
  Announcement a =
      ParseAnnouncement("listen=127.0.0.1:1 x=y metrics=[::1]:2\n");
  EXPECT_EQ(a.listen, "127.0.0.1:1");
  EXPECT_EQ(a.metrics, "[::1]:2");
  EXPECT_EQ(a.socket, "");
  EXPECT_EQ(ParseAnnouncement("socket=/a=b metrics=").socket, "/a=b");
  EXPECT_EQ(ParseAnnouncement("nonsense").listen, "");
}

TEST(AnnouncementTest, ASocketMayHoldSpacesAndStandFirstOrLast) {
  for (const char* line : {"socket=/a b/c  d metrics=127.0.0.1:9",
                           "metrics=127.0.0.1:9 socket=/a b/c  d\n"}) {
    EXPECT_EQ(ParseAnnouncement(line).socket, "/a b/c  d") << line;
    EXPECT_EQ(ParseAnnouncement(line).metrics, "127.0.0.1:9") << line;
  }
  EXPECT_EQ(ParseAnnouncement("socket=/a b").socket, "/a b");
  Announcement odd = ParseAnnouncement("metrics=h:1 socket=/a metrics=x/s");
  EXPECT_EQ(odd.socket, "/a metrics=x/s");
  EXPECT_EQ(odd.metrics, "h:1");
}

TEST(ArgumentsTest, BothDaemonsGetTheStartTimeout) {
  for (const auto& args : {CoordinatorArguments({.start_timeout_s = 7}),
                           WorkerArguments({.start_timeout_s = 7})}) {
    EXPECT_NE(std::find(args.begin(), args.end(), "--start_timeout=7s"),
              args.end())
        << args[0];
  }
}

TEST(ArgumentsTest, OfALongHostTheAgentGetsTheFirstLabels) {
  const auto host_of = [](const std::string& name) {
    std::string found;
    for (const std::string& a : WorkerArguments({.host = name})) {
      if (a.starts_with("--host=")) found = a.substr(strlen("--host="));
    }
    return found;
  };
  const std::string fits(kMaxHostBytes, 'h');
  EXPECT_EQ(host_of(fits), fits);
  EXPECT_EQ(host_of(fits + "."), fits);
  EXPECT_EQ(host_of(fits + "hhhhhhh"), fits);
  EXPECT_EQ(host_of("." + fits + "hhhhhh"), "." + fits.substr(1));
  const std::string pod =
      "trainer-worker-0.trainer.some-very-long-namespace.svc.cluster.local.org";
  ASSERT_GE(pod.size(), 70u);
  EXPECT_EQ(host_of(pod),
            "trainer-worker-0.trainer.some-very-long-namespace.svc.cluster");
}

TEST(ArgumentsTest, TheCoordinatorGetsTheFusionThresholdIfThereIsOne) {
  const auto has = [](const std::vector<std::string>& args) {
    return std::any_of(args.begin(), args.end(), [](const std::string& a) {
      return a.starts_with("--fusion_threshold");
    });
  };
  EXPECT_FALSE(has(CoordinatorArguments({})));
  const auto args = CoordinatorArguments({.fusion_threshold = 0});
  EXPECT_EQ(args.back(), "--fusion_threshold=0");
}

}  // namespace
}  // namespace maypole::launcher
