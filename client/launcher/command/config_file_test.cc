#include "client/launcher/command/config_file.h"

#include <gtest/gtest.h>

namespace maypole::launcher {
namespace {

std::vector<std::string> Settings(const std::string& text) {
  std::vector<ConfigSetting> settings;
  Status s = ReadConfig("c.yaml", text, &settings);
  EXPECT_TRUE(s.ok()) << s.message();
  std::vector<std::string> out;
  for (const ConfigSetting& setting : settings) {
    out.push_back(setting.option +
                  (setting.text.empty() ? "" : "=" + setting.text));
  }
  return out;
}

std::string Refused(const std::string& text) {
  std::vector<ConfigSetting> settings;
  return ReadConfig("c.yaml", text, &settings).message();
}

TEST(ConfigFileTest, AllKeysOfHorovod) {
  EXPECT_EQ(
      Settings("controller: gloo\n"
               "params:\n"
               "  fusion_threshold_mb: 32\n  cycle_time_ms: 3.5\n"
               "  cache_capacity: 2048\n  hierarchical_allreduce: true\n"
               "  hierarchical_allgather: false\n  torus_allreduce: no\n"
               "autotune:\n"
               "  enabled: yes\n  log_file: log.txt\n  warmup_samples: 3\n"
               "  steps_per_sample: 10\n  bayes_opt_max_samples: 20\n"
               "  gaussian_process_noise: 0.8\n"
               "timeline:\n  filename: t.json\n  mark_cycles: true\n"
               "stall_check:\n  enabled: false\n  warning_time_seconds: 120\n"
               "  shutdown_time_seconds: 0\n"
               "library_options:\n  mpi_threads_disable: false\n"
               "  num_nccl_streams: 2\n  thread_affinity: 0,1\n"
               "  gloo_timeout_seconds: 60\n"
               "logging:\n  level: INFO\n  with_timestamp: false\n"),
      (std::vector<std::string>{"--gloo",
                                "--fusion-threshold-mb=32",
                                "--cycle-time-ms=3.5",
                                "--cache-capacity=2048",
                                "--hierarchical-allreduce",
                                "--no-hierarchical-allgather",
                                "--no-torus-allreduce",
                                "--autotune",
                                "--autotune-log-file=log.txt",
                                "--autotune-warmup-samples=3",
                                "--autotune-steps-per-sample=10",
                                "--autotune-bayes-opt-max-samples=20",
                                "--autotune-gaussian-process-noise=0.8",
                                "--timeline-filename=t.json",
                                "--timeline-mark-cycles",
                                "--no-stall-check",
                                "--stall-check-warning-time-seconds=120",
                                "--stall-check-shutdown-time-seconds=0",
                                "--no-mpi-threads-disable",
                                "--num-nccl-streams=2",
                                "--thread-affinity=0,1",
                                "--gloo-timeout-seconds=60",
                                "--log-level=INFO",
                                "--log-without-timestamp"}));
}

TEST(ConfigFileTest, NothingIsSetByWhatHasNoValue) {
  for (const char* text :
       {"", "# nothing\n", "params:\n", "params:\n  cycle_time_ms:\n", "{}"}) {
    EXPECT_TRUE(Settings(text).empty()) << text;
  }
}

TEST(ConfigFileTest, SettingsKnowTheirPlace) {
  std::vector<ConfigSetting> settings;
  ASSERT_TRUE(
      ReadConfig("c.yaml", "params:\n\n  cache_capacity: 1\n", &settings).ok());
  ASSERT_EQ(settings.size(), 1u);
  EXPECT_EQ(settings[0].where, "c.yaml:3: params.cache_capacity");
}

TEST(ConfigFileTest, ErrorsNameFileLineAndKey) {
  EXPECT_EQ(Refused("params:\n  fusion_treshold_mb: 1\n"),
            "c.yaml:2: there is no key 'params.fusion_treshold_mb'; expected "
            "fusion_threshold_mb, cycle_time_ms, cache_capacity, "
            "hierarchical_allreduce, hierarchical_allgather or "
            "torus_allreduce");
  EXPECT_EQ(Refused("cycle_time_ms: 1\n"),
            "c.yaml:1: there is no key 'cycle_time_ms'; expected controller, "
            "params, autotune, timeline, stall_check, library_options or "
            "logging");
  EXPECT_EQ(Refused("params:\n  cycle_time_ms: fast\n"),
            "c.yaml:2: params.cycle_time_ms: expected a number, 0 or larger, "
            "got \"fast\"");
  EXPECT_EQ(Refused("params:\n  cache_capacity: -1\n"),
            "c.yaml:2: params.cache_capacity: expected an integer, 0 or "
            "larger, got \"-1\"");
  EXPECT_EQ(Refused("params: 3\n"),
            "c.yaml:1: params: expected a section with keys and values, got "
            "\"3\"");
  EXPECT_EQ(Refused("autotune:\n  enabled: [true]\n"),
            "c.yaml:2: autotune.enabled: expected one value, got a list");
  EXPECT_EQ(Refused("autotune:\n  enabled: perhaps\n"),
            "c.yaml:2: autotune.enabled: expected true or false, got "
            "\"perhaps\"");
  EXPECT_EQ(Refused("controller: slurm\n"),
            "c.yaml:1: controller: expected gloo or mpi, got \"slurm\"");
  EXPECT_EQ(Refused("- a\n- b\n"),
            "c.yaml:1: expected sections with keys and values");
  EXPECT_EQ(Refused("params: {\n").find("c.yaml:"), 0u);
  EXPECT_NE(Refused("a: b: c\n").find("c.yaml:1: this is not YAML: "),
            std::string::npos);
}

}  // namespace
}  // namespace maypole::launcher
