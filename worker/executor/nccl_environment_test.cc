#include "worker/executor/nccl_environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace maypole::worker {
namespace {

std::string InterfaceFor(const std::string& network) {
  unsetenv("NCCL_SOCKET_IFNAME");
  SetNcclEnvironment(network);
  const char* const name = std::getenv("NCCL_SOCKET_IFNAME");
  return name == nullptr ? "" : name;
}

TEST(NcclEnvironmentTest, NcclListensOnTheJobsInterface) {
  EXPECT_EQ(InterfaceFor("127.0.0.1"), "=lo");
  EXPECT_EQ(InterfaceFor(""), "");
  EXPECT_EQ(InterfaceFor("192.0.2.1"), "");  // of no machine (RFC 5737)
  EXPECT_EQ(InterfaceFor("localhost"), "");
}

TEST(NcclEnvironmentTest, WhatIsSetStays) {
  setenv("NCCL_SOCKET_IFNAME", "^docker", 1);
  setenv("NCCL_P2P_DIRECT_DISABLE", "0", 1);
  SetNcclEnvironment("127.0.0.1");
  EXPECT_STREQ(std::getenv("NCCL_SOCKET_IFNAME"), "^docker");
  EXPECT_STREQ(std::getenv("NCCL_P2P_DIRECT_DISABLE"), "0");
}

}  // namespace
}  // namespace maypole::worker
