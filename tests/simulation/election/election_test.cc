// Plays seeds of an election's world, and verifies that it finds deliberate
// defects. --long: 3,000 seeds. --seed=N: one, printing each fault.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>

#include "tests/simulation/election/world.h"

namespace maypole::simulation {
namespace {

bool play_all = false;
uint64_t only = 0;

void Print(uint64_t seed, const ElectionResult& result) {
  for (const std::string& found : result.found) {
    std::cout << "seed " << seed << ": " << found << "\n";
  }
}

TEST(ElectionSimulationTest, NoSeedBreaksAPromise) {
  const uint64_t seeds = play_all ? 3000 : 500;
  ElectionResult all;
  uint64_t failures = 0;
  for (uint64_t seed = only > 0 ? only : 1; seed <= (only > 0 ? only : seeds);
       ++seed) {
    const ElectionResult r = PlayElection({.seed = seed, .trace = only > 0});
    Print(seed, r);
    failures += !r.found.empty();
    all.leaders += r.leaders;
    all.taken_over += r.taken_over;
    all.refused += r.refused;
    all.executed += r.executed;
    all.epochs_ended += r.epochs_ended;
    all.two_led += r.two_led;
    all.longest_without_leader =
        std::max(all.longest_without_leader, r.longest_without_leader);
  }
  std::cout << "leaders " << all.leaders << ", sessions taken over "
            << all.taken_over << ", deposed leaders refused " << all.refused
            << ", operations executed " << all.executed << ", epochs ended "
            << all.epochs_ended << ", tenths of a second with two leaders "
            << all.two_led << ", longest without a leader "
            << all.longest_without_leader / 1000000 << " ms\n";
  EXPECT_EQ(failures, 0u);
  if (only > 0) return;
  // The seeds have covered all kinds of events.
  EXPECT_GT(all.leaders, 2 * seeds);
  EXPECT_GT(all.taken_over, 2 * seeds);
  EXPECT_GT(all.two_led, seeds / 4);
  EXPECT_GT(all.refused, seeds / 200);
  EXPECT_GT(all.executed, 100 * seeds);
}

TEST(ElectionSimulationTest, EqualSeedsGiveEqualRuns) {
  for (const uint64_t seed : {3, 8}) {
    const ElectionResult a = PlayElection({.seed = seed});
    const ElectionResult b = PlayElection({.seed = seed});
    EXPECT_EQ(a.taken_over, b.taken_over);
    EXPECT_EQ(a.longest_without_leader, b.longest_without_leader);
  }
}

// Plays seeds until one breaks a promise.
std::string FirstFound(ElectionOptions options) {
  for (options.seed = 1; options.seed <= 1000; ++options.seed) {
    const ElectionResult r = PlayElection(options);
    if (r.found.empty()) continue;
    std::cout << "seed " << options.seed << ": " << r.found.front() << "\n";
    return r.found.front();
  }
  return "";
}

TEST(ElectionSimulationTest, ALeaderThatIgnoresTheEndOfItsLeaseIsFound) {
  EXPECT_NE(FirstFound({.ignore_loss = true}).find(" leads by etcd"),
            std::string::npos);
}

TEST(ElectionSimulationTest, AnExecutorThatJoinsAnEarlierTermIsFound) {
  EXPECT_NE(FirstFound({.accept_older = true}).find(" joins term "),
            std::string::npos);
}

}  // namespace

void ReadArguments(int argc, char** argv) {
  const std::string seed = "--seed=";
  for (int i = 1; i < argc; ++i) {
    play_all = play_all || argv[i] == std::string("--long");
    if (std::string(argv[i]).starts_with(seed)) {
      only = std::strtoull(argv[i] + seed.size(), nullptr, 10);
    }
  }
}

}  // namespace maypole::simulation

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  maypole::simulation::ReadArguments(argc, argv);
  return RUN_ALL_TESTS();
}
