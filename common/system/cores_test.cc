#include "common/system/cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace maypole {
namespace {

using Files = std::map<std::string, std::string>;

double QuotaWith(const Files& files) {
  return CpuQuota([&](const std::string& path) -> std::optional<std::string> {
    const auto it = files.find(path);
    if (it == files.end()) return std::nullopt;
    return it->second;
  });
}

TEST(CoresTest, QuotaOfOneFile) {
  EXPECT_EQ(QuotaV2("150000 100000\n"), 1.5);
  EXPECT_EQ(QuotaV2("50000 100000"), 0.5);
  EXPECT_EQ(QuotaV2("max 100000\n"), UnlimitedCores());
  for (const char* odd :
       {"", "\n", "max", "x y", "100000", "1e5 100000", "100000 0\n",
        "-1 100000\n", "99999999999999999999 100000\n"}) {
    EXPECT_EQ(QuotaV2(odd), UnlimitedCores()) << odd;
  }
  EXPECT_EQ(QuotaV1("400000\n", "100000\n"), 4);
  EXPECT_EQ(QuotaV1("-1\n", "100000\n"), UnlimitedCores());
  EXPECT_EQ(QuotaV1("100000\n", ""), UnlimitedCores());
}

TEST(CoresTest, WithoutCgroupsThereIsNoQuota) {
  EXPECT_EQ(QuotaWith({}), UnlimitedCores());
  EXPECT_EQ(QuotaWith({{"/proc/self/cgroup", ""}}), UnlimitedCores());
  EXPECT_EQ(QuotaWith({{"/proc/self/cgroup", "0\nx:\n0::\n0::relative\n:\n"}}),
            UnlimitedCores());
}

// The smallest quota on the path to the root counts; the root itself has none.
TEST(CoresTest, V2QuotaOfTheCgroupOrOneAbove) {
  Files files = {
      {"/proc/self/cgroup", "0::/slurm/job_7/step_0\n"},
      {"/sys/fs/cgroup/slurm/job_7/step_0/cpu.max", "max 100000\n"},
      {"/sys/fs/cgroup/slurm/job_7/cpu.max", "250000 100000\n"},
      {"/sys/fs/cgroup/slurm/cpu.max", "3200000 100000\n"},
  };
  EXPECT_EQ(QuotaWith(files), 2.5);
  files["/sys/fs/cgroup/slurm/job_7/step_0/cpu.max"] = "100000 100000\n";
  EXPECT_EQ(QuotaWith(files), 1);
  files["/sys/fs/cgroup/slurm/cpu.max"] = "50000 100000\n";
  EXPECT_EQ(QuotaWith(files), 0.5);
}

TEST(CoresTest, V2InAContainer) {
  // With a cgroup namespace, and without: the path is the host's.
  for (const char* line : {"0::/\n", "0::/docker/0123456789ab\n"}) {
    EXPECT_EQ(QuotaWith({{"/proc/self/cgroup", line},
                         {"/sys/fs/cgroup/cpu.max", "200000 100000\n"}}),
              2);
  }
}

TEST(CoresTest, V1) {
  const std::string cgroups =
      "12:memory:/a\n4:cpu,cpuacct:/batch/job\n3:cpuset:/\n"
      "1:name=systemd:/x\n0::/\n";
  for (const char* mount :
       {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"}) {
    const std::string job = std::string(mount) + "/batch/job";
    Files files = {
        {"/proc/self/cgroup", cgroups},
        {job + "/cpu.cfs_quota_us", "-1\n"},
        {job + "/cpu.cfs_period_us", "100000\n"},
        {std::string(mount) + "/batch/cpu.cfs_quota_us", "75000\n"},
        {std::string(mount) + "/batch/cpu.cfs_period_us", "50000\n"},
    };
    EXPECT_EQ(QuotaWith(files), 1.5) << mount;
    files[job + "/cpu.cfs_quota_us"] = "25000\n";
    EXPECT_EQ(QuotaWith(files), 0.25) << mount;
  }
  // The path of another controller is ignored.
  EXPECT_EQ(QuotaWith({{"/proc/self/cgroup", "3:cpuset:/batch\n"},
                       {"/sys/fs/cgroup/cpu/batch/cpu.cfs_quota_us", "1000"},
                       {"/sys/fs/cgroup/cpu/batch/cpu.cfs_period_us", "1000"}}),
            UnlimitedCores());
}

// Both hierarchies at once: then v2 usually has no controllers, but may.
TEST(CoresTest, Hybrid) {
  EXPECT_EQ(QuotaWith({{"/proc/self/cgroup", "1:cpu:/\n0::/unit\n"},
                       {"/sys/fs/cgroup/unified/unit/cpu.max", "30000 10000"},
                       {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000"},
                       {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000"}}),
            3);
}

TEST(CoresTest, ReadsFilesBelowARoot) {
  const std::filesystem::path root =
      std::filesystem::path(getenv("TEST_TMPDIR")) / "root";
  const auto write = [&](const std::string& path, const std::string& text) {
    const std::filesystem::path file = root / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  };
  write("proc/self/cgroup", "0::/job\n");
  EXPECT_EQ(CpuQuota(ReadFilesUnder(root)), UnlimitedCores());
  write("sys/fs/cgroup/job/cpu.max", "120000 100000\n");
  EXPECT_EQ(CpuQuota(ReadFilesUnder(root)), 1.2);
  EXPECT_EQ(CpuQuota(ReadFilesUnder(root.string() + "/")), 1.2);
  // This machine's own, whatever it is.
  EXPECT_GT(CpuQuota(ReadFilesUnder("/")), 0);
}

TEST(CoresTest, AffinityOfTheThread) {
  std::thread([] {
    const uint32_t all = AffinityCores();
    EXPECT_GE(all, 1u);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(sched_getcpu()), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(AffinityCores(), 1u);
  }).join();
}

// A kernel with more processors than fit into the mask refuses it.
TEST(CoresTest, TheMaskGrowsWithTheMachine) {
  for (const size_t processors : {1, 1024, 1025, 4096, 100000}) {
    std::vector<size_t> asked;
    const auto get = [&](size_t bytes, cpu_set_t* mask) {
      asked.push_back(bytes);
      if (bytes * 8 < processors) {
        errno = EINVAL;
        return -1;
      }
      for (size_t i = 0; i < processors; ++i) CPU_SET_S(i, bytes, mask);
      return 0;
    };
    EXPECT_EQ(AffinityCores(get), processors);
    EXPECT_EQ(asked.size() > 1, processors > 1024) << processors;
  }
}

TEST(CoresTest, WithoutAMaskThereIsOneCore) {
  int asked = 0;
  const auto fail_with = [&asked](int error) {
    return [&asked, error](size_t, cpu_set_t*) {
      ++asked;
      errno = error;
      return -1;
    };
  };
  EXPECT_EQ(AffinityCores(fail_with(EPERM)), 1u);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(AffinityCores(fail_with(EINVAL)), 1u);  // it ends
  EXPECT_EQ(AffinityCores([](size_t, cpu_set_t*) { return 0; }), 1u);
}

TEST(CoresTest, UsableCoresAreThoseOfTheMaskAndTheQuota) {
  EXPECT_EQ(UsableCores(64, UnlimitedCores()), 64u);
  EXPECT_EQ(UsableCores(64, 4.0), 4u);
  EXPECT_EQ(UsableCores(64, 3.2), 4u);
  EXPECT_EQ(UsableCores(2, 3.2), 2u);
  EXPECT_EQ(UsableCores(64, 0.5), 1u);
  EXPECT_EQ(UsableCores(2000, UnlimitedCores()), 2000u);
  EXPECT_GE(UsableCores(), 1u);
  EXPECT_LE(UsableCores(), AffinityCores());
}

}  // namespace
}  // namespace maypole
