#include "client/launcher/hosts/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "client/launcher/process/announcement.h"
#include "common/limits.h"

namespace maypole::launcher {
namespace {

std::vector<int> NodesOf(int ranks, int nodes) {
  std::vector<int> out;
  for (const Place& p : PlaceRanks(SpreadEvenly(ranks, nodes)))
    out.push_back(p.node);
  return out;
}

std::map<std::string, std::string> Map(const Variables& variables) {
  return {variables.begin(), variables.end()};
}

JobEnvironment FourOnTwo() {
  return {.ranks = 4,
          .nodes = 2,
          .job = "j",
          .token = "t",
          .start_timeout_s = 7,
          .usable_cores = 10,
          .ranks_here = 4,
          .agent = "/a1"};
}

TEST(PlacementTest, AJobsIdBeginsWithItsName) {
  EXPECT_EQ(JobId("", "0123456789abcdef01"), "0123456789abcdef");
  EXPECT_EQ(JobId("net", "0123456789abcdef01"), "net-01234567");
}

TEST(PlacementTest, RanksGoNodeByNode) {
  EXPECT_EQ(NodesOf(4, 2), (std::vector<int>{0, 0, 1, 1}));
  EXPECT_EQ(NodesOf(3, 2), (std::vector<int>{0, 0, 1}));
  EXPECT_EQ(NodesOf(5, 3), (std::vector<int>{0, 0, 1, 1, 2}));
  EXPECT_EQ(NodesOf(3, 1), (std::vector<int>{0, 0, 0}));
}

TEST(PlacementTest, RanksAreNumberedWithinTheirNode) {
  std::vector<Place> places = PlaceRanks({2, 1});
  ASSERT_EQ(places.size(), 3u);
  EXPECT_EQ(places[1].rank, 1);
  EXPECT_EQ(places[1].local_rank, 1);
  EXPECT_EQ(places[1].local_size, 2);
  EXPECT_EQ(places[2].rank, 2);
  EXPECT_EQ(places[2].local_rank, 0);
  EXPECT_EQ(places[2].local_size, 1);
}

TEST(PlacementTest, EnvironmentOfARank) {
  auto v = Map(RankVariables(FourOnTwo(), PlaceRanks({2, 2})[3],
                             [](const std::string&) { return false; }));
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

TEST(PlacementTest, WhatTheUserSetStays) {
  auto v = Map(RankVariables(FourOnTwo(), PlaceRanks({2, 2})[0],
                             [](const std::string&) { return true; }));
  EXPECT_FALSE(v.contains("PYTHONUNBUFFERED"));
  EXPECT_FALSE(v.contains("OMP_NUM_THREADS"));
  EXPECT_EQ(v["MAYPOLE_RANK"], "0");
}

TEST(PlacementTest, ARankIsBoundToTheGpuOfItsLocalRank) {
  JobEnvironment job = FourOnTwo();
  job.gpus = {"4", "GPU-7"};
  const std::vector<Place> places = PlaceRanks({3, 1});
  const auto none_set = [](const std::string&) { return false; };
  for (const auto& [place, gpu] : {std::pair(0, "4"), std::pair(1, "GPU-7"),
                                   std::pair(2, "4"), std::pair(3, "4")}) {
    EXPECT_EQ(Map(RankVariables(job, places[static_cast<size_t>(place)],
                                none_set))["CUDA_VISIBLE_DEVICES"],
              gpu);
  }
}

TEST(PlacementTest, WithTheShimHorovodsVariablesAreSet) {
  JobEnvironment job = FourOnTwo();
  const auto none_set = [](const std::string&) { return false; };
  const Place place = PlaceRanks({2, 2})[3];
  EXPECT_FALSE(Map(RankVariables(job, place, none_set)).contains("PYTHONPATH"));
  job.horovod_shim = "/m/horovod_shim";
  job.host = "h2";
  auto v = Map(RankVariables(job, place, none_set));
  EXPECT_EQ(v["PYTHONPATH"], "/m/horovod_shim");
  for (const auto& [name, value] :
       {std::pair("RANK", "3"), std::pair("SIZE", "4"),
        std::pair("LOCAL_RANK", "1"), std::pair("LOCAL_SIZE", "2"),
        std::pair("CROSS_RANK", "1"), std::pair("CROSS_SIZE", "2"),
        std::pair("HOSTNAME", "h2")}) {
    EXPECT_EQ(v[std::string("HOROVOD_") + name], value) << name;
  }
  job.python_path = "/m:/n";
  EXPECT_EQ(Map(RankVariables(job, place, none_set))["PYTHONPATH"],
            "/m/horovod_shim:/m:/n");
}

TEST(PlacementTest, AJobInProcessHasNoAgent) {
  JobEnvironment job{.ranks = 1, .nodes = 1};
  auto v = Map(RankVariables(job, PlaceRanks({1})[0],
                             [](const std::string&) { return false; }));
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
