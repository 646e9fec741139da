// What the environment says about a rank.
#include "client/bootstrap/rank_options.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace maypole {
namespace {

Status Read(const std::map<std::string, std::string>& environment,
            RankOptions* o) {
  return ReadRankOptions(
      [&](const char* name) -> const char* {
        const auto it = environment.find(name);
        return it == environment.end() ? nullptr : it->second.c_str();
      },
      o);
}

TEST(RankOptionsTest, StallTimesAreOursOrHorovodsInSeconds) {
  RankOptions o;
  EXPECT_TRUE(Read({}, &o).ok());
  EXPECT_EQ(o.stall_check_ms, -1);
  EXPECT_TRUE(Read({{"HOROVOD_STALL_CHECK_TIME_SECONDS", "2.5"},
                    {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "60"}},
                   &o)
                  .ok());
  EXPECT_EQ(o.stall_check_ms, 2500);
  EXPECT_EQ(o.stall_shutdown_ms, 60000);
  EXPECT_TRUE(Read({{"HOROVOD_STALL_CHECK_TIME_SECONDS", "2"},
                    {"MAYPOLE_STALL_CHECK_TIME_SECONDS", "7"}},
                   &o)
                  .ok());
  EXPECT_EQ(o.stall_check_ms, 7000);
  EXPECT_TRUE(Read({{"HOROVOD_STALL_CHECK_DISABLE", "1"}}, &o).ok());
  EXPECT_EQ(o.stall_check_ms, 0);
  EXPECT_NE(Read({{"HOROVOD_STALL_CHECK_TIME_SECONDS", "soon"}}, &o)
                .message()
                .find("HOROVOD_STALL_CHECK_TIME_SECONDS='soon'"),
            std::string::npos);
}

TEST(RankOptionsTest, TheLogLevelDecidesAboutNotices) {
  RankOptions o;
  for (const char* level : {"", "trace", "WARNING", "info"}) {
    EXPECT_TRUE(Read({{"HOROVOD_LOG_LEVEL", level}}, &o).ok());
    EXPECT_TRUE(o.notices) << level;
  }
  EXPECT_TRUE(Read({{"HOROVOD_LOG_LEVEL", "error"}}, &o).ok());
  EXPECT_FALSE(o.notices);
  EXPECT_TRUE(
      Read({{"HOROVOD_LOG_LEVEL", "fatal"}, {"MAYPOLE_LOG_LEVEL", "warning"}},
           &o)
          .ok());
  EXPECT_TRUE(o.notices);
  EXPECT_EQ(Read({{"HOROVOD_LOG_LEVEL", "loud"}}, &o).message(),
            "HOROVOD_LOG_LEVEL='loud': expected trace, debug, info, warning, "
            "error or fatal");
}

TEST(RankOptionsTest, ProcessorsOfTheProgressThreads) {
  RankOptions o;
  EXPECT_TRUE(Read({}, &o).ok());
  EXPECT_TRUE(o.thread_affinity.empty());
  EXPECT_TRUE(Read({{"HOROVOD_THREAD_AFFINITY", "0,2,11"}}, &o).ok());
  EXPECT_EQ(o.thread_affinity, (std::vector<int>{0, 2, 11}));
  for (const char* text : {"0,", "a", "-1", "1;2", ",", "0 1", "70000"}) {
    EXPECT_EQ(Read({{"MAYPOLE_THREAD_AFFINITY", text}}, &o).message(),
              std::string("MAYPOLE_THREAD_AFFINITY='") + text +
                  "': expected the numbers of processors, separated by commas, "
                  "one for each rank of a node");
  }
}

TEST(RankOptionsTest, Checksums) {
  RankOptions o;
  EXPECT_TRUE(Read({}, &o).ok());
  EXPECT_EQ(o.checksums, ChecksumMode::kOff);
  EXPECT_TRUE(Read({{"MAYPOLE_CHECKSUMS", "1"}}, &o).ok());
  EXPECT_EQ(o.checksums, ChecksumMode::kFail);
  EXPECT_TRUE(Read({{"MAYPOLE_CHECKSUMS", "warn"}}, &o).ok());
  EXPECT_EQ(o.checksums, ChecksumMode::kWarn);
  EXPECT_TRUE(Read({{"MAYPOLE_CHECKSUMS", "0"}}, &o).ok());
  EXPECT_EQ(o.checksums, ChecksumMode::kOff);
  EXPECT_EQ(Read({{"MAYPOLE_CHECKSUMS", "yes"}}, &o).message(),
            "MAYPOLE_CHECKSUMS='yes': expected 1 (results that differ end the "
            "job), warn (they are only reported), or 0 (they are not "
            "compared)");
}

TEST(RankOptionsTest, AnElasticRankHasLimitsAndNoPlace) {
  using Environment = std::map<std::string, std::string>;
  const Environment elastic = {
      {"MAYPOLE_ELASTIC", "1"}, {"MAYPOLE_AGENT", "/a"}, {"MAYPOLE_JOB", "j"}};
  const auto with = [&](const Environment& more) {
    Environment all = elastic;
    for (const auto& [name, value] : more) all[name] = value;
    return all;
  };
  RankOptions o;
  ASSERT_TRUE(Read(elastic, &o).ok());
  EXPECT_TRUE(o.elastic);
  EXPECT_FALSE(o.local());
  EXPECT_EQ(o.min_size, 1);
  EXPECT_EQ(o.max_size, kMaxRanks);
  EXPECT_EQ(o.last_epoch, 0u);
  // Variables of a launcher in the environment do not number an elastic rank.
  ASSERT_TRUE(Read(with({{"MAYPOLE_MIN_SIZE", "2"},
                         {"MAYPOLE_MAX_SIZE", "5"},
                         {"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "2"}}),
                   &o)
                  .ok());
  EXPECT_EQ(o.min_size, 2);
  EXPECT_EQ(o.max_size, 5);
  EXPECT_EQ(o.size, 1);
  ASSERT_TRUE(Read({{"MAYPOLE_ELASTIC", "0"}}, &o).ok());
  EXPECT_FALSE(o.elastic);

  const auto error = [&](const Environment& environment) {
    return Read(environment, &o).message();
  };
  EXPECT_EQ(error({{"MAYPOLE_ELASTIC", "yes"}}),
            "MAYPOLE_ELASTIC='yes': expected a number from 0 to 1");
  EXPECT_EQ(error(with({{"MAYPOLE_MIN_SIZE", "0"}})),
            "MAYPOLE_MIN_SIZE='0': expected a number from 1 to 16384");
  EXPECT_EQ(error(with({{"MAYPOLE_MAX_SIZE", "many"}})),
            "MAYPOLE_MAX_SIZE='many': expected a number from 1 to 16384");
  EXPECT_EQ(error(with({{"MAYPOLE_MIN_SIZE", "3"}, {"MAYPOLE_MAX_SIZE", "2"}})),
            "MAYPOLE_MIN_SIZE=3 exceeds MAYPOLE_MAX_SIZE=2");
  EXPECT_EQ(error(with({{"MAYPOLE_LOCAL_RANK", "0"}})),
            "MAYPOLE_LOCAL_RANK=0 is set, but MAYPOLE_ELASTIC=1 too: the "
            "coordinator numbers the ranks of an elastic job; unset one of "
            "them");
  EXPECT_EQ(error(with({{"MAYPOLE_JOB", ""}})),
            "MAYPOLE_ELASTIC=1 but MAYPOLE_JOB is not set; start the ranks "
            "with maypolerun --min-np, or unset MAYPOLE_ELASTIC");
  EXPECT_EQ(error(with({{"MAYPOLE_AGENT", ""}})),
            "MAYPOLE_ELASTIC=1 but MAYPOLE_AGENT is not set; start the ranks "
            "with maypolerun --min-np, or unset MAYPOLE_ELASTIC");
}

TEST(RankOptionsTest, BadEnvironmentsAreNamed) {
  const auto read = [](std::map<std::string, std::string> env) {
    RankOptions o;
    return ReadRankOptions(
               [&](const char* name) -> const char* {
                 const auto it = env.find(name);
                 return it == env.end() ? nullptr : it->second.c_str();
               },
               &o)
        .message();
  };
  EXPECT_EQ(read({}), "");
  EXPECT_EQ(read({{"MAYPOLE_SIZE", "two"}}),
            "MAYPOLE_SIZE='two': expected a number from 1 to 16384");
  EXPECT_NE(read({{"MAYPOLE_SIZE", "4"}}).find("MAYPOLE_JOB is not set"),
            std::string::npos);
  EXPECT_EQ(read({{"MAYPOLE_SIZE", "2"},
                  {"MAYPOLE_RANK", "2"},
                  {"MAYPOLE_AGENT", "/a"},
                  {"MAYPOLE_JOB", "j"}}),
            "MAYPOLE_RANK=2 does not fit MAYPOLE_SIZE=2");
  for (const char* job : {"my job", "team/job", "a\nb"}) {
    EXPECT_EQ(read({{"MAYPOLE_SIZE", "2"},
                    {"MAYPOLE_AGENT", "/a"},
                    {"MAYPOLE_JOB", job}})
                  .substr(0, 39),
              "MAYPOLE_JOB must be 1 to 63 printable A")
        << job;
    // The name of a job of one rank is never shown, so it is not checked.
    EXPECT_EQ(read({{"MAYPOLE_SIZE", "1"}, {"MAYPOLE_JOB", job}}), "");
  }
  EXPECT_EQ(read({{"HOROVOD_FUSION_THRESHOLD", "64MB"}}),
            "HOROVOD_FUSION_THRESHOLD='64MB': must be a number of bytes from 0 "
            "(no fusion) to 17592186044416");
  EXPECT_NE(read({{"MAYPOLE_FUSION_THRESHOLD", "-1"}}), "");
}

TEST(RankOptionsTest, OurVariablesWinOverALaunchers) {
  std::map<std::string, std::string> env = {{"OMPI_COMM_WORLD_RANK", "3"},
                                            {"OMPI_COMM_WORLD_SIZE", "4"},
                                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                            {"HOROVOD_START_TIMEOUT", "7"}};
  const auto read = [&] {
    RankOptions o;
    const Status s = ReadRankOptions(
        [&](const char* name) -> const char* {
          const auto it = env.find(name);
          return it == env.end() ? nullptr : it->second.c_str();
        },
        &o);
    EXPECT_TRUE(s.ok()) << s.message();
    return o;
  };
  RankOptions o = read();
  EXPECT_EQ(o.rank, 3);
  EXPECT_EQ(o.size, 4);
  EXPECT_EQ(o.local_rank, 1);
  EXPECT_EQ(o.local_size, 2);
  EXPECT_EQ(o.start_timeout_seconds, 7);
  EXPECT_NE(o.job, "");
  EXPECT_EQ(o.agent, "");
  env["MAYPOLE_JOB"] = "mine";
  env["MAYPOLE_START_TIMEOUT"] = "9";
  EXPECT_EQ(read().job, "mine");
  EXPECT_EQ(read().start_timeout_seconds, 9);
  env["MAYPOLE_RANK"] = "2";
  EXPECT_EQ(read().rank, 2);
  // With all MAYPOLE_* numbers set, the launcher's variables are not read.
  env["MAYPOLE_SIZE"] = "3";
  o = read();
  EXPECT_EQ(o.size, 3);
  EXPECT_EQ(o.rank, 2);
  EXPECT_EQ(o.local_size, 1);
}

TEST(RankOptionsTest, OurFusionThresholdGoesBeforeHorovods) {
  std::map<std::string, std::string> env;
  const auto read = [&] {
    RankOptions o;
    const Status s = ReadRankOptions(
        [&](const char* name) -> const char* {
          const auto it = env.find(name);
          return it == env.end() ? nullptr : it->second.c_str();
        },
        &o);
    EXPECT_TRUE(s.ok()) << s.message();
    return o.fusion_threshold;
  };
  EXPECT_EQ(read(), -1);
  env["HOROVOD_FUSION_THRESHOLD"] = "1000";
  EXPECT_EQ(read(), 1000);
  env["MAYPOLE_FUSION_THRESHOLD"] = "";
  EXPECT_EQ(read(), 1000);
  env["MAYPOLE_FUSION_THRESHOLD"] = "0";
  EXPECT_EQ(read(), 0);
}

TEST(RankOptionsTest, WaysOfCudaTensorsAreHorovods) {
  RankOptions o;
  EXPECT_TRUE(Read({{"HOROVOD_ENABLE_ASYNC_COMPLETION", "1"},
                    {"HOROVOD_GPU_ALLREDUCE", "MPI"}},
                   &o)
                  .ok());
  EXPECT_TRUE(o.async_completion);
  EXPECT_EQ(o.gpu_notice, "");
  EXPECT_TRUE(Read({{"HOROVOD_GPU_OPERATIONS", "NCCL"},
                    {"MAYPOLE_GPU_BROADCAST", "NCCL"}},
                   &o)
                  .ok());
  EXPECT_FALSE(o.async_completion);
  EXPECT_EQ(o.gpu_notice,
            "maypole: HOROVOD_GPU_OPERATIONS, MAYPOLE_GPU_BROADCAST=NCCL: NCCL "
            "is used where it is found (maypolerun --check-build), for the "
            "kinds of operations in docs/gpu.md; the others are copied "
            "through host memory");
  EXPECT_EQ(
      Read({{"HOROVOD_GPU_ALLREDUCE", "DDL"}}, &o).message(),
      "HOROVOD_GPU_ALLREDUCE=DDL: DDL is not supported; expected NCCL, or "
      "MPI (copies through host memory)");
  EXPECT_EQ(Read({{"HOROVOD_GPU_ALLTOALL", "nccl"}}, &o).code(),
            Code::kInvalidArgument);
}

TEST(RankOptionsTest, WhereOperationsOfGpusRun) {
  RankOptions o;
  for (const char* site : {"", "auto", "agent"}) {
    EXPECT_TRUE(Read({{"MAYPOLE_GPU_SITE", site}}, &o).ok()) << site;
    EXPECT_EQ(o.gpu_memory.mode, GpuMemoryMode::kAuto) << site;
    EXPECT_EQ(o.gpu_memory.chooses_site, std::string(site) != "agent") << site;
  }
  EXPECT_TRUE(Read({{"MAYPOLE_GPU_MEMORY", "descriptor"}}, &o).ok());
  EXPECT_FALSE(o.gpu_memory.chooses_site);
  EXPECT_TRUE(
      Read({{"MAYPOLE_GPU_SITE", "host"}, {"MAYPOLE_GPU_MEMORY", "descriptor"}},
           &o)
          .ok());
  EXPECT_EQ(o.gpu_memory.mode, GpuMemoryMode::kNone);
  EXPECT_TRUE(Read({{"MAYPOLE_GPU_SITE", "client"}}, &o).ok());
  EXPECT_EQ(o.gpu_memory.mode, GpuMemoryMode::kOwn);
  EXPECT_EQ(Read({{"MAYPOLE_GPU_SITE", "nccl"}}, &o).message(),
            "MAYPOLE_GPU_SITE='nccl': expected auto, agent, client, or host "
            "(copies through host memory)");
  const std::pair<const char*, const char*> host[] = {
      {"MAYPOLE_GPU_MEMORY", "host"}, {"HOROVOD_GPU_ALLREDUCE", "MPI"}};
  for (const auto& [name, value] : host) {
    for (const std::string site : {"agent", "client"}) {
      EXPECT_EQ(
          Read({{"MAYPOLE_GPU_SITE", site}, {name, value}}, &o).message(),
          "MAYPOLE_GPU_SITE=" + site +
              " runs operations on GPUs, which MAYPOLE_GPU_MEMORY=host or "
              "HOROVOD_GPU_ALLREDUCE=MPI turns off: leave one of them out");
    }
  }
}

TEST(RankOptionsTest, HowGpuMemoryIsShared) {
  const auto mode = [](std::map<std::string, std::string> environment) {
    RankOptions o;
    const Status s = Read(environment, &o);
    EXPECT_TRUE(s.ok()) << s.message();
    return o.gpu_memory.mode;
  };
  EXPECT_EQ(mode({}), GpuMemoryMode::kAuto);
  EXPECT_EQ(mode({{"MAYPOLE_GPU_MEMORY", ""}}), GpuMemoryMode::kAuto);
  EXPECT_EQ(mode({{"MAYPOLE_GPU_MEMORY", "auto"}}), GpuMemoryMode::kAuto);
  EXPECT_EQ(mode({{"MAYPOLE_GPU_MEMORY", "descriptor"}}),
            GpuMemoryMode::kDescriptor);
  EXPECT_EQ(mode({{"MAYPOLE_GPU_MEMORY", "ipc"}}), GpuMemoryMode::kIpcHandle);
  EXPECT_EQ(mode({{"MAYPOLE_GPU_MEMORY", "host"}}), GpuMemoryMode::kNone);
  // Horovod's names for it.
  EXPECT_EQ(mode({{"HOROVOD_GPU_ALLREDUCE", "MPI"}}), GpuMemoryMode::kNone);
  EXPECT_EQ(mode({{"HOROVOD_GPU_OPERATIONS", "MPI"}}), GpuMemoryMode::kNone);
  EXPECT_EQ(mode({{"HOROVOD_GPU_OPERATIONS", "MPI"},
                  {"HOROVOD_GPU_ALLREDUCE", "NCCL"}}),
            GpuMemoryMode::kAuto);
  EXPECT_EQ(mode({{"HOROVOD_GPU_BROADCAST", "MPI"}}), GpuMemoryMode::kAuto);

  RankOptions o;
  EXPECT_EQ(Read({{"MAYPOLE_GPU_MEMORY", "vmm"}}, &o).message(),
            "MAYPOLE_GPU_MEMORY='vmm': expected auto, descriptor, ipc, or host "
            "(copies through host memory)");
  EXPECT_EQ(o.gpu_memory.limit, -1);
  EXPECT_TRUE(Read({{"MAYPOLE_GPU_MEMORY_BYTES", "1000000000"}}, &o).ok());
  EXPECT_EQ(o.gpu_memory.limit, 1000000000);
  EXPECT_EQ(Read({{"MAYPOLE_GPU_MEMORY_BYTES", "1G"}}, &o).message(),
            "MAYPOLE_GPU_MEMORY_BYTES='1G': expected a number of bytes from 0 "
            "(none) to 1099511627776");
  EXPECT_EQ(o.gpu_memory.host_bytes, GpuMemoryOptions::kByDevice);
  EXPECT_TRUE(Read({{"MAYPOLE_GPU_HOST_BYTES", "0"}}, &o).ok());
  EXPECT_EQ(o.gpu_memory.host_bytes, 0);
  EXPECT_EQ(Read({{"MAYPOLE_GPU_HOST_BYTES", "-1"}}, &o).message(),
            "MAYPOLE_GPU_HOST_BYTES='-1': expected a number of bytes from 0 "
            "(only what GPUs cannot do) to 1099511627776");
}

TEST(RankOptionsTest, TheTimelinesFileIsOursOrHorovods) {
  RankOptions o;
  EXPECT_TRUE(Read({}, &o).ok());
  EXPECT_EQ(o.timeline, "");
  EXPECT_FALSE(o.timeline_mark_cycles);
  EXPECT_TRUE(Read({{"HOROVOD_TIMELINE", "h.json"},
                    {"HOROVOD_TIMELINE_MARK_CYCLES", "1"}},
                   &o)
                  .ok());
  EXPECT_EQ(o.timeline, "h.json");
  EXPECT_TRUE(o.timeline_mark_cycles);
  EXPECT_TRUE(
      Read({{"HOROVOD_TIMELINE", "h.json"}, {"MAYPOLE_TIMELINE", "m.json"}}, &o)
          .ok());
  EXPECT_EQ(o.timeline, "m.json");
  // DYNAMIC is not a file's name.
  EXPECT_TRUE(Read({{"HOROVOD_TIMELINE", "DYNAMIC"}}, &o).ok());
  EXPECT_EQ(o.timeline, "");
}

}  // namespace
}  // namespace maypole
