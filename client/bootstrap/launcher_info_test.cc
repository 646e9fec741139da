#include "client/bootstrap/launcher_info.h"

#include <map>

#include "common/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Variables = std::map<std::string, std::string>;

const ProcessFacts kFacts = {.uid = 1000, .host = "m1", .hydra_proxy = "77.1"};

Status Find(const Variables& variables, LauncherInfo* out,
            ProcessFacts facts = kFacts) {
  return DetectLauncher(
      [&](const char* name) -> const char* {
        const auto it = variables.find(name);
        return it == variables.end() ? nullptr : it->second.c_str();
      },
      facts, out);
}

LauncherInfo Must(const Variables& variables, ProcessFacts facts = kFacts) {
  LauncherInfo f;
  const Status s = Find(variables, &f, facts);
  EXPECT_TRUE(s.ok()) << s.message();
  return f;
}

std::string ErrorOf(const Variables& variables) {
  LauncherInfo f;
  return Find(variables, &f).message();
}

Variables With(Variables v, const Variables& more) {
  for (const auto& [name, value] : more) v[name] = value;
  return v;
}

const Variables kTorchrun = {{"TORCHELASTIC_RUN_ID", "none"},
                             {"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"GROUP_RANK", "1"},
                             {"MASTER_ADDR", "10.0.0.1"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_RESTART_COUNT", "0"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"PMIX_NAMESPACE", "1868627969"}};
// Task 5 of 8 on the second of two nodes.
const Variables kJsrun = {{"JSM_NAMESPACE_RANK", "5"},
                          {"JSM_NAMESPACE_SIZE", "8"},
                          {"JSM_NAMESPACE_LOCAL_RANK", "1"},
                          {"JSM_NAMESPACE_LOCAL_SIZE", "4"},
                          {"LSB_JOBID", "714"},
                          {"PMIX_NAMESPACE", "1"}};
const Variables kHydra = {{"PMI_RANK", "1"},
                          {"PMI_SIZE", "2"},
                          {"MPI_LOCALRANKID", "1"},
                          {"MPI_LOCALNRANKS", "2"}};
// Task 4 of 7 on the third of four nodes.
const Variables kSlurm = {
    {"SLURM_JOB_ID", "12"},    {"SLURM_STEP_ID", "3"},
    {"SLURM_PROCID", "4"},     {"SLURM_LOCALID", "0"},
    {"SLURM_NTASKS", "9"},     {"SLURM_STEP_NUM_TASKS", "7"},
    {"SLURM_NODEID", "2"},     {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
    {"SLURMD_NODENAME", "n3"}, {"SLURM_STEP_NODELIST", "n[1-3,07]"}};

TEST(LauncherInfoTest, NothingSetIsAJobOfOneRank) {
  const LauncherInfo f =
      Must({{"PATH", "/bin"}, {"RANK", "3"}, {"PMI_RANK", "1"}});
  EXPECT_EQ(f.launcher, Launcher::kNone);
  EXPECT_EQ(f.rank, 0);
  EXPECT_EQ(f.size, 1);
  EXPECT_EQ(f.job, "");
}

// Variables set by hand, or by the Kubernetes operator for PyTorch.
TEST(LauncherInfoTest, TorchsVariablesWithoutTorchrun) {
  Variables all = kTorchrun;
  all.erase("TORCHELASTIC_RUN_ID");
  EXPECT_EQ(Must(all).launcher, Launcher::kTorchrun);
  EXPECT_EQ(Must(all).rank, 5);
  EXPECT_EQ(Must(With(all, kOpenMpi)).launcher, Launcher::kOpenMpi);
  // An error, not several jobs of one rank.
  Variables half = all;
  half.erase("LOCAL_WORLD_SIZE");
  EXPECT_EQ(ErrorOf(half),
            "a launcher for torch.distributed started this process, but "
            "LOCAL_WORLD_SIZE is not set: start the job again with the "
            "launcher, or set all MAYPOLE_* variables");
  EXPECT_EQ(Must(With(half, {{"WORLD_SIZE", "1"}, {"RANK", "0"}})).size, 1);
  half.erase("MASTER_ADDR");
  EXPECT_EQ(Must(half).launcher, Launcher::kNone);
}

TEST(LauncherInfoTest, Torchrun) {
  const LauncherInfo f = Must(kTorchrun);
  EXPECT_EQ(f.launcher, Launcher::kTorchrun);
  EXPECT_EQ(f.rank, 5);
  EXPECT_EQ(f.size, 8);
  EXPECT_EQ(f.local_rank, 1);
  EXPECT_EQ(f.local_size, 4);
  EXPECT_EQ(f.node_tag, "1");
  EXPECT_THAT(f.job, StartsWith("torchrun."));
  // All ranks of all nodes agree; another user has another job.
  EXPECT_EQ(Must(With(kTorchrun, {{"RANK", "0"}, {"LOCAL_RANK", "0"}}),
                 {.uid = 1000, .host = "m2"})
                .job,
            f.job);
  EXPECT_NE(Must(kTorchrun, {.uid = 1001, .host = "m1"}).job, f.job);
}

// After a restart the agents of one job may have counted differently.
TEST(LauncherInfoTest, ARestartOfTorchrunIsAnotherJobOnAllNodes) {
  const Variables counted = {{"TORCHELASTIC_RESTART_COUNT", "1"}};
  const Variables own_store =
      With(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}});
  const std::string job = Must(own_store).job;
  EXPECT_EQ(Must(With(own_store, counted)).job, job);
  EXPECT_NE(Must(With(own_store, {{"MASTER_PORT", "29501"}})).job, job);
  EXPECT_EQ(Must(With(kTorchrun, counted)).job, Must(kTorchrun).job);
  // The port stays the same, so only the count distinguishes them.
  const Variables agents_store =
      With(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  EXPECT_NE(Must(With(agents_store, counted)).job, Must(agents_store).job);
}

TEST(LauncherInfoTest, JobsOfOneNodeOnTwoMachinesAreTwo) {
  const Variables one = With(kTorchrun, {{"WORLD_SIZE", "4"}, {"RANK", "1"}});
  EXPECT_NE(Must(one, {.uid = 1, .host = "m1"}).job,
            Must(one, {.uid = 1, .host = "m2"}).job);
}

TEST(LauncherInfoTest, OpenMpi) {
  const LauncherInfo f = Must(kOpenMpi);
  EXPECT_EQ(f.launcher, Launcher::kOpenMpi);
  EXPECT_EQ(f.rank, 3);
  EXPECT_EQ(f.size, 4);
  EXPECT_EQ(f.local_rank, 1);
  EXPECT_EQ(f.local_size, 2);
  EXPECT_THAT(f.job, StartsWith("mpirun."));
  EXPECT_NE(Must(With(kOpenMpi, {{"PMIX_NAMESPACE", "1"}})).job, f.job);
}

TEST(LauncherInfoTest, Jsrun) {
  const LauncherInfo f = Must(kJsrun);
  EXPECT_EQ(f.launcher, Launcher::kJsrun);
  EXPECT_EQ(f.rank, 5);
  EXPECT_EQ(f.size, 8);
  EXPECT_EQ(f.local_rank, 1);
  EXPECT_EQ(f.local_size, 4);
  EXPECT_THAT(f.job, StartsWith("jsrun."));
  // Another step of the allocation, and the first step of another one.
  EXPECT_NE(Must(With(kJsrun, {{"PMIX_NAMESPACE", "2"}})).job, f.job);
  EXPECT_NE(Must(With(kJsrun, {{"LSB_JOBID", "715"}})).job, f.job);
  // Under Spectrum MPI, jsrun also sets Open MPI's variables.
  EXPECT_EQ(Must(With(kOpenMpi, kJsrun)).job, f.job);
}

TEST(LauncherInfoTest, Hydra) {
  const LauncherInfo f = Must(kHydra);
  EXPECT_EQ(f.launcher, Launcher::kHydra);
  EXPECT_EQ(f.rank, 1);
  EXPECT_EQ(f.local_size, 2);
  // Two mpiexec on one machine.
  EXPECT_NE(
      Must(kHydra, {.uid = 1000, .host = "m1", .hydra_proxy = "77.2"}).job,
      f.job);
  // On several nodes the job has no unique name unless the user sets one.
  const Variables nodes = With(kHydra, {{"PMI_SIZE", "4"}});
  EXPECT_THAT(ErrorOf(nodes),
              HasSubstr("set MAYPOLE_JOB to a unique name on all ranks"));
  EXPECT_EQ(Must(With(nodes, {{"MAYPOLE_JOB", "mine"}})).size, 4);
}

// Variables of an unknown launcher are an error, not several jobs of one rank.
TEST(LauncherInfoTest, UnknownLaunchersAreNamed) {
  for (const char* name : {"PMI_SIZE", "MV2_COMM_WORLD_SIZE"}) {
    EXPECT_THAT(ErrorOf({{name, "4"}}), StartsWith(std::string(name) + "=4 "));
    EXPECT_EQ(Must({{name, "1"}}).size, 1);
    EXPECT_EQ(Must({{name, "4"}, {"SLURM_STEP_ID", "0"}}).size, 1);
  }
}

TEST(LauncherInfoTest, Slurm) {
  const LauncherInfo f = Must(kSlurm);
  EXPECT_EQ(f.launcher, Launcher::kSlurm);
  EXPECT_EQ(f.rank, 4);
  EXPECT_EQ(f.size, 7);
  EXPECT_EQ(f.local_rank, 0);
  EXPECT_EQ(f.local_size, 2);
  EXPECT_EQ(f.job, "slurm.12.3.0");
  EXPECT_EQ(f.node_name, "n3");
  EXPECT_EQ(f.node_tag, "2");
  EXPECT_EQ(f.head, "n1");
  EXPECT_FALSE(f.at_head);
  EXPECT_EQ(Must(With(kSlurm, {{"SLURM_NODEID", "3"}})).local_size, 1);
  EXPECT_TRUE(Must(With(kSlurm, {{"SLURM_NODEID", "0"}})).at_head);
  EXPECT_EQ(Must(With(kSlurm, {{"SLURM_RESTART_COUNT", "2"}})).job,
            "slurm.12.3.2");
}

TEST(LauncherInfoTest, SlurmsVariablesWhereNoRanksRun) {
  Variables batch = kSlurm;
  batch.erase("SLURM_STEP_ID");
  EXPECT_EQ(Must(batch).size, 1);
  for (const char* special : {"4294967291", "4294967292", "4294967290"}) {
    EXPECT_EQ(Must(With(kSlurm, {{"SLURM_STEP_ID", special}})).size, 1);
  }
  Variables salloc = batch;
  salloc.erase("SLURM_PROCID");
  EXPECT_EQ(Must(salloc).size, 1);
  // A step of one task, however many the job has.
  EXPECT_EQ(Must(With(kSlurm, {{"SLURM_STEP_NUM_TASKS", "1"}})).launcher,
            Launcher::kNone);
}

TEST(LauncherInfoTest, AnInteractiveShellIsAlone) {
  const Variables shell = With(kSlurm, {{"SLURM_PTY_PORT", "4711"}});
  ProcessFacts facts = kFacts;
  facts.terminal = true;
  EXPECT_EQ(Must(shell, facts).size, 1);
  // Tasks of an srun in that shell inherit the variable, but not the terminal.
  EXPECT_EQ(Must(shell).size, 7);
}

TEST(LauncherInfoTest, TheInnermostWins) {
  EXPECT_EQ(Must(With(kSlurm, kOpenMpi)).launcher, Launcher::kOpenMpi);
  EXPECT_EQ(Must(With(kSlurm, kHydra)).launcher, Launcher::kHydra);
  EXPECT_EQ(Must(With(With(kSlurm, kOpenMpi), kTorchrun)).launcher,
            Launcher::kTorchrun);
  // srun --mpi=pmi2
  EXPECT_EQ(Must(With(kSlurm, {{"PMI_RANK", "4"}, {"PMI_SIZE", "7"}})).launcher,
            Launcher::kSlurm);
}

TEST(LauncherInfoTest, EachMissingVariableIsNamed) {
  for (const Variables& all : {kTorchrun, kOpenMpi, kJsrun, kHydra}) {
    for (const auto& [name, value] : all) {
      Variables less = all;
      less.erase(name);
      LauncherInfo f;
      const Status s = Find(less, &f);
      const bool needed = name.find("RANK") != std::string::npos ||
                          name.find("SIZE") != std::string::npos;
      if (!needed || name == "GROUP_RANK") continue;
      EXPECT_FALSE(s.ok()) << name;
      EXPECT_THAT(s.message(), HasSubstr(name + " is not set"));
    }
  }
  for (const char* name :
       {"SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_TASKS_PER_NODE",
        "SLURM_STEP_NODELIST", "SLURM_JOB_ID"}) {
    Variables less = kSlurm;
    less.erase(name);
    EXPECT_THAT(ErrorOf(less), HasSubstr(name));
  }
}

TEST(LauncherInfoTest, ContradictionsNameBoth) {
  EXPECT_EQ(ErrorOf(With(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "4"}})),
            "OMPI_COMM_WORLD_RANK=4 does not fit OMPI_COMM_WORLD_SIZE=4");
  EXPECT_EQ(ErrorOf(With(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}})),
            "LOCAL_WORLD_SIZE=9 does not fit WORLD_SIZE=8");
  EXPECT_EQ(ErrorOf(With(kHydra, {{"MPI_LOCALRANKID", "2"}})),
            "MPI_LOCALRANKID=2 does not fit MPI_LOCALNRANKS=2");
  EXPECT_EQ(ErrorOf(With(kSlurm, {{"SLURM_NODEID", "4"}})),
            "SLURM_NODEID=4 does not fit SLURM_STEP_TASKS_PER_NODE=2(x3),1");
  EXPECT_THAT(ErrorOf(With(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "2(y3)"}})),
              HasSubstr("SLURM_STEP_TASKS_PER_NODE='2(y3)'"));
  EXPECT_EQ(ErrorOf(With(kTorchrun, {{"RANK", "x"}})),
            "RANK='x' (set by torchrun): expected a number from 0 to 16383");
}

TEST(LauncherInfoTest, HostLists) {
  std::vector<std::string> hosts;
  ASSERT_TRUE(ExpandHosts("n[1-3,07],m1", &hosts).ok());
  EXPECT_THAT(hosts, ElementsAre("n1", "n2", "n3", "n07", "m1"));
  ASSERT_TRUE(ExpandHosts("gpu-a[008-010]-ib", &hosts).ok());
  EXPECT_THAT(hosts, ElementsAre("gpu-a008-ib", "gpu-a009-ib", "gpu-a010-ib"));
  ASSERT_TRUE(ExpandHosts("r[1-2]n[1,3]", &hosts).ok());
  EXPECT_THAT(hosts, ElementsAre("r1n1", "r1n3", "r2n1", "r2n3"));
  for (const char* bad : {"", "n[", "n[]", "n[3-1]", "n[a]", "n]", ",",
                          "n[1-99999999]", "n[1-4000]m[1-4000]"}) {
    EXPECT_FALSE(ExpandHosts(bad, &hosts).ok()) << bad;
  }
}

TEST(LauncherInfoTest, CountLists) {
  std::vector<int> counts;
  ASSERT_TRUE(ExpandCounts("2(x3),1", &counts).ok());
  EXPECT_THAT(counts, ElementsAre(2, 2, 2, 1));
  for (const char* bad :
       {"", "x", "2(x)", "2(x0)", "2(x3", "-1", "1(x16385)"}) {
    EXPECT_FALSE(ExpandCounts(bad, &counts).ok()) << bad;
  }
}

}  // namespace
}  // namespace maypole
