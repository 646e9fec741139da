#include "client/launcher/elastic/host_discovery.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <future>

namespace maypole::launcher {
namespace {

using Clock = std::chrono::steady_clock;

// The name service hangs: the loop continues, and the hosts stay as they were.
TEST(HostDiscovery, ASlowNameServiceHoldsNobodyUpAndIsAskedOnceForAName) {
  const std::string script = std::string(getenv("TEST_TMPDIR")) + "/discover";
  std::ofstream(script) << "#!/bin/sh\necho ours:2\necho theirs:3\n";
  ASSERT_EQ(chmod(script.c_str(), 0755), 0);
  std::promise<void> answer;
  const std::shared_future<void> answered = answer.get_future().share();
  std::atomic<int> asked{0};
  std::vector<std::vector<Host>> found;
  OutputLoop loop;
  HostDiscovery discovery(
      &loop, {.script = script,
              .is_here =
                  [&, answered](const std::string& name) {
                    ++asked;
                    answered.wait();
                    return name == "ours";
                  },
              .on_hosts = [&](const auto& hosts) { found.push_back(hosts); },
              .say = [](const std::string& line) { ADD_FAILURE() << line; }});
  // Runs the loop until the condition holds; no round may take long.
  const auto run_until = [&](const std::function<bool()>& condition) {
    const auto end = Clock::now() + std::chrono::seconds(30);
    while (!condition() && Clock::now() < end) {
      discovery.OnTime(Clock::now());
      loop.Poll(discovery.deadline());
    }
    ASSERT_TRUE(condition());
  };
  run_until([&] { return asked > 0; });
  for (int round = 0; round < 3; ++round) {
    discovery.OnTime(Clock::now());
    loop.Poll(discovery.deadline());
  }
  EXPECT_TRUE(found.empty());
  answer.set_value();
  run_until([&] { return found.size() == 2; });  // the script runs again
  for (const std::vector<Host>& hosts : found) {
    ASSERT_EQ(hosts.size(), 2u);
    EXPECT_TRUE(hosts[0].here);
    EXPECT_FALSE(hosts[1].here);
    EXPECT_EQ(hosts[1].slots, 3);
  }
  EXPECT_EQ(asked, 2);
}

}  // namespace
}  // namespace maypole::launcher
