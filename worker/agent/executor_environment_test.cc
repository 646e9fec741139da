#include "worker/agent/executor_environment.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace maypole::worker {
namespace {

using Variables = std::vector<std::string>;

TEST(ExecutorEnvironmentTest, TheJobsReplaceTheAgents) {
  const char* const agent[] = {"PATH=/bin", "NCCL_DEBUG=WARN",
                               "NCCL_NET=Socket", "CUDA_VISIBLE_DEVICES=0,1",
                               nullptr};
  const ExecutorEnvironment e = MakeExecutorEnvironment(
      agent, {"NCCL_DEBUG=INFO", "NCCL_NET_PLUGIN=ofi", "NCCL_DEBUG=TRACE"},
      false);
  EXPECT_EQ(e.variables,
            (Variables{"CUDA_VISIBLE_DEVICES=0,1", "NCCL_DEBUG=INFO",
                       "NCCL_NET=Socket", "NCCL_NET_PLUGIN=ofi", "PATH=/bin"}));
  EXPECT_TRUE(e.left_out.empty());
}

TEST(ExecutorEnvironmentTest, AnotherUserDoesNotChooseCode) {
  const char* const agent[] = {"NCCL_NET_PLUGIN=ofi", nullptr};
  const ExecutorEnvironment e = MakeExecutorEnvironment(
      agent,
      {"NCCL_NET_PLUGIN=/home/u/x.so", "CUDA_INJECTION64_PATH=/home/u/x.so",
       "NCCL_CONF_FILE=/home/u/conf", "NCCL_SOCKET_IFNAME=eth0",
       "MAYPOLE_NCCL_LIBRARY=/home/u/libnccl.so.2"},
      true);
  EXPECT_EQ(e.variables,
            (Variables{"NCCL_CONF_FILE=/dev/null", "NCCL_NET_PLUGIN=ofi",
                       "NCCL_SOCKET_IFNAME=eth0"}));
  EXPECT_EQ(e.left_out,
            (Variables{"MAYPOLE_NCCL_LIBRARY", "NCCL_CONF_FILE",
                       "CUDA_INJECTION64_PATH", "NCCL_NET_PLUGIN"}));
}

TEST(ExecutorEnvironmentTest, TheAgentsNcclCountsAndEveryUserMayDoWithout) {
  const std::string mine = "MAYPOLE_NCCL_LIBRARY=/site/libnccl.so.2";
  const char* const agent[] = {mine.c_str(), nullptr};
  const Variables job = {"MAYPOLE_NCCL_LIBRARY=/venv/libnccl.so.2"};
  EXPECT_EQ(MakeExecutorEnvironment(agent, job, false).variables,
            Variables{mine});
  const char* const empty[] = {nullptr};
  EXPECT_EQ(MakeExecutorEnvironment(empty, job, false).variables, job);
  const Variables none = {"MAYPOLE_NCCL_LIBRARY=none"};
  EXPECT_EQ(MakeExecutorEnvironment(empty, none, true).variables,
            (Variables{none[0], "NCCL_CONF_FILE=/dev/null"}));
}

TEST(ExecutorEnvironmentTest, OnlyTheFirstNamesAreReported) {
  const char* const agent[] = {nullptr};
  const Variables many(100, "NCCL_X_PLUGIN=a");
  EXPECT_EQ(MakeExecutorEnvironment(agent, many, true).left_out.size(),
            kMaxLeftOut);
}

TEST(ExecutorEnvironmentTest, TheAgentsOwnConfFileIsKept) {
  const char* const agent[] = {"NCCL_CONF_FILE=/etc/site.conf", nullptr};
  EXPECT_EQ(MakeExecutorEnvironment(agent, {}, true).variables,
            (Variables{"NCCL_CONF_FILE=/etc/site.conf"}));
}

}  // namespace
}  // namespace maypole::worker
