#include "common/wire/job_variables.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "common/encryption_mode.h"

namespace maypole::session {
namespace {

using namespace std::string_literals;  // NOLINT: for strings with zeros

std::string Packed(std::vector<const char*> environment,
                   std::string_view nccl_library = "") {
  environment.push_back(nullptr);
  std::string message;
  const Status s =
      HelloMessage(Make<Hello>(), environment.data(), nccl_library, &message);
  EXPECT_TRUE(s.ok()) << s.message();
  return message;
}

Status Parse(const std::string& message, std::vector<std::string>* out) {
  Hello hello;
  return ParseHello(message.data(), message.size(),
                    {"the agent", kProtocolVersions}, &hello, out);
}

// The agent's error for a Hello followed by these bytes.
std::string Refusal(const std::string& variables) {
  auto hello = Make<Hello>();
  hello.header.size = static_cast<uint32_t>(sizeof(hello) + variables.size());
  std::vector<std::string> out;
  const std::string bytes(reinterpret_cast<const char*>(&hello), sizeof(hello));
  return Parse(bytes + variables, &out).message();
}

TEST(JobVariablesTest, OnlyThoseOfNcclAndCudaTravel) {
  const std::string message =
      Packed({"PATH=/bin", "NCCL_SOCKET_IFNAME=^virbr0,lo",
              "NCCL_X=", "CUDA_VISIBLE_DEVICES=3", "LD_PRELOAD=/tmp/x.so",
              "CUDA_LAUNCH_BLOCKING=1", "NCCL_COMM_BLOCKING=1", "NCCL_B=a\nb",
              "CUDA_CACHE_DISABLE=a=b", "XNCCL_A=1", "NCCL=1", "NCCL_NO_VALUE",
              "NCCL_F%%=() { :; }"});
  std::vector<std::string> variables;
  const Status s = Parse(message, &variables);
  ASSERT_TRUE(s.ok()) << s.message();
  EXPECT_EQ(variables,
            (std::vector<std::string>{"NCCL_SOCKET_IFNAME=^virbr0,lo",
                                      "NCCL_X=", "CUDA_CACHE_DISABLE=a=b"}));
}

TEST(JobVariablesTest, TheRanksNcclTravelsUnlessTheUserNamesOne) {
  std::vector<std::string> variables;
  ASSERT_TRUE(Parse(Packed({}, "/venv/libnccl.so.2"), &variables).ok());
  EXPECT_EQ(
      variables,
      (std::vector<std::string>{"MAYPOLE_NCCL_LIBRARY=/venv/libnccl.so.2"}));
  const char* const given = "MAYPOLE_NCCL_LIBRARY=/opt/libnccl.so.2";
  ASSERT_TRUE(Parse(Packed({given}, "/venv/libnccl.so.2"), &variables).ok());
  EXPECT_EQ(variables, (std::vector<std::string>{given}));
  EXPECT_EQ(Packed({}, "/a\nb/libnccl.so.2").size(), sizeof(Hello));
}

TEST(JobVariablesTest, WhatTheJobWantsOfTheNetworkTravels) {
  std::vector<std::string> variables;
  const char* const given = "MAYPOLE_NETWORK_ENCRYPTION=require";
  ASSERT_TRUE(
      Parse(Packed({given, "MAYPOLE_NETWORK_ENCRYPTIONS=1"}), &variables).ok());
  EXPECT_EQ(variables, (std::vector<std::string>{given}));
  EXPECT_TRUE(IsJobVariable(kEncryptionVariable));
}

TEST(JobVariablesTest, AHelloWithoutVariablesIsAHello) {
  EXPECT_EQ(Packed({"PATH=/bin"}).size(), sizeof(Hello));
  std::vector<std::string> variables = {"old"};
  EXPECT_TRUE(Parse(Packed({}), &variables).ok());
  EXPECT_TRUE(variables.empty());
}

TEST(JobVariablesTest, ThereIsALimit) {
  const std::string most = "NCCL_A=" + std::string(kMaxVariablesBytes - 8, 'x');
  EXPECT_EQ(Packed({most.c_str()}).size(), kMaxHelloBytes);
  const char* environment[] = {most.c_str(), "NCCL_B=1", nullptr};
  std::string message;
  EXPECT_EQ(HelloMessage(Make<Hello>(), environment, "", &message).message(),
            "the variables NCCL_*, CUDA_*, MAYPOLE_NCCL_LIBRARY and "
            "MAYPOLE_NETWORK_ENCRYPTION take 65545 bytes, "
            "but may take 65536");
  EXPECT_NE(Refusal(most + "\0\0"s).find("a message of "), std::string::npos);
}

TEST(JobVariablesTest, WhatIsHostileIsRefused) {
  constexpr std::string_view kStart =
      "the client's variables for NCCL and CUDA are malformed: ";
  const std::pair<std::string, std::string> cases[] = {
      {"LD_PRELOAD=x\0"s,
       "'LD_PRELOAD' is not one of NCCL_* and CUDA_* that an executor takes"},
      {"NCCL_A=1\0PATH=/x\0"s,
       "'PATH' is not one of NCCL_* and CUDA_* that an executor takes"},
      {"CUDA_VISIBLE_DEVICES=0\0"s,
       "'CUDA_VISIBLE_DEVICES' is not one of NCCL_* and CUDA_* that an "
       "executor takes"},
      {"NCCL_A\nB=1\0"s,
       "'NCCL_A\nB' is not one of NCCL_* and CUDA_* that an executor takes"},
      {"NCCL_A=1\nevent=x\0"s, "the value of NCCL_A has a control character"},
      {"NCCL_A=1"s, "the last one does not end"},
      {"\0"s, "one has no value"},
      {"NCCL_A\0"s, "one has no value"},
      {"=\0"s, "'' is not one of NCCL_* and CUDA_* that an executor takes"},
  };
  for (const auto& [sent, answer] : cases) {
    EXPECT_EQ(Refusal(sent), std::string(kStart) + answer) << sent;
  }
  EXPECT_LT(Refusal(std::string(60000, 'n') + "=1\0"s).size(), 200u);
  // Shorter than a Hello.
  std::vector<std::string> variables;
  std::string bytes = Packed({});
  bytes.resize(100);
  auto* header = reinterpret_cast<Header*>(bytes.data());
  header->size = 100;
  EXPECT_FALSE(Parse(bytes, &variables).ok());
}

}  // namespace
}  // namespace maypole::session
