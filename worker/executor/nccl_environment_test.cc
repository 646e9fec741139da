#include "worker/executor/nccl_environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace maypole::worker {
namespace {

std::string InterfacesFor(const std::vector<std::string>& networks) {
  unsetenv("NCCL_SOCKET_IFNAME");
  SetNcclEnvironment(networks);
  const char* const name = std::getenv("NCCL_SOCKET_IFNAME");
  return name == nullptr ? "" : name;
}

TEST(NcclEnvironmentTest, NcclListensOnTheJobsInterface) {
  EXPECT_EQ(InterfacesFor({"127.0.0.1"}), "=lo");
  EXPECT_EQ(InterfacesFor({"127.0.0.1", "127.0.0.1"}), "=lo,lo");
  EXPECT_EQ(InterfacesFor({}), "");
  EXPECT_EQ(InterfacesFor({"192.0.2.1"}), "");  // of no machine (RFC 5737)
  EXPECT_EQ(InterfacesFor({"localhost"}), "");
}

TEST(NcclEnvironmentTest, WhatIsSetStays) {
  setenv("NCCL_SOCKET_IFNAME", "^docker", 1);
  setenv("NCCL_P2P_DIRECT_DISABLE", "0", 1);
  SetNcclEnvironment({"127.0.0.1"});
  EXPECT_STREQ(std::getenv("NCCL_SOCKET_IFNAME"), "^docker");
  EXPECT_STREQ(std::getenv("NCCL_P2P_DIRECT_DISABLE"), "0");
}

}  // namespace
}  // namespace maypole::worker
