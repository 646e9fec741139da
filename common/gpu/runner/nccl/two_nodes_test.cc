// Two nodes with two GPUs each: this process and this program, started again
// with another $NCCL_HOSTID, so that the fake NCCL treats their GPUs as
// different ones.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"
#include "common/gpu/runner/testing/collective_fixture.h"
#include "common/limits.h"
#include "common/system/fd.h"

namespace maypole {
namespace {

using testing::HasSubstr;

constexpr char kIds[] = "COMMUNICATOR_IDS";  // in hexadecimal digits
constexpr char kEnd[] = "END_OF_TEST";       // a pipe that is closed then
constexpr uint32_t kNodes = 2;
constexpr uint32_t kPerGpu = 2;
constexpr uint32_t kPrograms = 6;

// What both nodes do.
class NodeTest : public CollectiveFixture {
 protected:
  static constexpr uint32_t kPerNode = kGpus * kPerGpu;

  static Bytes InputOf(const Case& c, uint32_t place, uint32_t rank) {
    return SomeValues(c.dtype, c.elements, 100 * place + rank);
  }
  static Bytes WantedOf(const Case& c, uint32_t place) {
    std::vector<std::vector<Bytes>> inputs(kNodes * kGpus);
    for (uint32_t rank = 0; rank < kNodes * kPerNode; ++rank) {
      inputs[rank / kPerGpu].push_back(InputOf(c, place, rank));
    }
    return OnCpu(c, inputs);
  }

  // `ids`: for a communicator of all GPUs, and for one of the first node's last
  // GPU and the last node's first GPU.
  void Join(uint32_t node, const std::string& ids) {
    node_ = node;
    OpenRanks(kPerGpu);
    Connect(1, ids.substr(0, ids.size() / 2), kNodes * kGpus, node * kGpus);
    runner().Connect(
        {.number = 2, .size = kNodes, .first = node, .gpus = {1 - node}},
        ids.substr(ids.size() / 2));
    Connect(kOfThisNode);
  }
  void ReduceAll() {
    GpuRun last = {.communicator = 1};
    for (uint32_t i = 0; i < kCases.size(); ++i) {
      for (uint32_t local = 0; local < ranks(); ++local) {
        Write(local, i, InputOf(kCases[i], i, node_ * kPerNode + local));
      }
      GpuOperation o = OperationOf(kCases[i], i, i);
      if (i < kCases.size() / 2) {
        runner().Run(RunOf(1, o));
      } else {
        last.operations.push_back(std::move(o));
      }
    }
    runner().Run(last);
    for (uint32_t i = 0; i <= kCases.size() / 2; ++i) {
      const Status s = Ended(i);
      ASSERT_TRUE(s.ok()) << s.message();
    }
    for (uint32_t i = 0; i < kCases.size(); ++i) {
      const Bytes wanted = WantedOf(kCases[i], i);
      for (uint32_t local = 0; local < ranks(); ++local) {
        EXPECT_EQ(Read(local, i, wanted.size()), wanted)
            << "case " << i << " of local rank " << local;
      }
    }
  }
  // All kinds, over random members of several communicators, fused at random;
  // both nodes draw the same numbers.
  void RunProgram(uint32_t seed) {
    std::mt19937_64 random(seed);
    std::vector<KindCase> kinds;
    std::vector<GpuRun> runs;
    bool may_fuse = false;
    for (uint32_t place = 0; place < kPlaces; ++place) {
      const Group group = SomeGroup(random);
      const Kind kind = kKindsOfGpus[random() % std::size(kKindsOfGpus)];
      const Shape shape = kShapes[random() % std::size(kShapes)];
      kinds.push_back(MakeKind(kind, shape, group.ranks, 100 * seed + place));
      WriteInputs(kinds.back(), place);
      const bool fuse = random() % 2 == 0 && may_fuse && !Gathers(kind) &&
                        runs.back().communicator == group.communicator;
      const auto slot = static_cast<uint32_t>(runs.size());
      if (!fuse) runs.push_back({.communicator = group.communicator});
      runs.back().operations.push_back(
          OperationOf(kinds.back(), 1000 * seed + slot, place));
      may_fuse = !Gathers(kind);
    }
    for (const GpuRun& run : runs) runner().Run(run);
    for (const GpuRun& run : runs) {
      const Status s = Ended(run.operations[0].slot);
      ASSERT_TRUE(s.ok()) << s.message();
    }
    for (uint32_t i = 0; i < kPlaces; ++i) ExpectResults(kinds[i], i);
  }
  GpuRun SomeRun(uint32_t slot) const {
    return RunOf(1, OperationOf({.elements = 10}, slot, 0));
  }

 private:
  static constexpr uint32_t kPlaces = 24;
  static constexpr uint32_t kOfThisNode = kMaxCommunicators + 1;

  struct Group {
    uint32_t communicator = 0;
    std::vector<uint32_t> ranks;
  };

  // Ranks of these GPUs, at least one of each, in any order. For a communicator
  // of one node, or none, they are those of this one.
  Group SomeGroup(std::mt19937_64& random) const {
    const uint32_t first = node_ * kGpus;
    const Group groups[] = {{1, {0, 1, 2, 3}},
                            {2, {1, 2}},
                            {kOfThisNode, {first, first + 1}},
                            {0, {first + 1}}};
    Group group = groups[random() % std::size(groups)];
    const std::vector<uint32_t> gpus = std::exchange(group.ranks, {});
    for (const uint32_t gpu : gpus) {
      group.ranks.push_back(gpu * kPerGpu);
      if (random() % 3 != 0) group.ranks.push_back(gpu * kPerGpu + 1);
    }
    for (size_t i = group.ranks.size(); i > 1; --i) {
      std::swap(group.ranks[i - 1], group.ranks[random() % i]);
    }
    return group;
  }
};

// --- The other node ----------------------------------------------------------

class OtherNode : public NodeTest {
 protected:
  static std::string Ids() {
    const char* const id = std::getenv(kIds);
    return absl::HexStringToBytes(id != nullptr ? id : "");
  }
  // If it went earlier, NCCL might report that before the GPUs here are done.
  static void WaitForOtherNode() {
    const char* const end = std::getenv(kEnd);
    char byte = 0;
    EXPECT_EQ(read(std::atoi(end != nullptr ? end : "-1"), &byte, 1), 0);
  }
};

TEST_F(OtherNode, DISABLED_RunsAllKinds) {
  Join(1, Ids());
  ReduceAll();
  for (uint32_t seed = 1; seed <= kPrograms; ++seed) RunProgram(seed);
  WaitForOtherNode();
}

TEST_F(OtherNode, DISABLED_Dies) {
  Join(1, Ids());
  runner().Run(SomeRun(0));
  EXPECT_TRUE(Ended(0).ok()) << Ended(0).message();
  WaitForOtherNode();
  _exit(0);
}

// --- This node ---------------------------------------------------------------

class TwoNodesTest : public NodeTest {
 protected:
  void Start(const std::string& name) {
    const std::string ids = *NewId(1) + *NewId(2);
    const std::string filter = "--gtest_filter=OtherNode.DISABLED_" + name;
    const std::string variable =
        std::string(kIds) + "=" + absl::BytesToHexString(ids);
    std::string host = "NCCL_HOSTID=other";
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const Fd its_end(fcntl(ends[0], F_DUPFD, 0));
    close(ends[0]);
    end_ = Fd(ends[1]);
    const std::string end =
        std::string(kEnd) + "=" + std::to_string(its_end.get());
    std::vector<char*> environment;
    for (char** e = environ; *e != nullptr; ++e) {
      if (!std::string_view(*e).starts_with("XML_OUTPUT_FILE=")) {
        environment.push_back(*e);
      }
    }
    environment.push_back(const_cast<char*>(variable.c_str()));
    environment.push_back(host.data());
    environment.push_back(const_cast<char*>(end.c_str()));
    environment.push_back(nullptr);
    const char* const arguments[] = {
        "node", filter.c_str(), "--gtest_also_run_disabled_tests", nullptr};
    ASSERT_EQ(
        posix_spawn(&other_, "/proc/self/exe", nullptr, nullptr,
                    const_cast<char* const*>(arguments), environment.data()),
        0);
    Join(0, ids);
  }
  void TearDown() override {
    end_.Reset();
    int status = -1;
    EXPECT_EQ(waitpid(other_, &status, 0), other_);
    EXPECT_EQ(status, 0);
    NodeTest::TearDown();
  }

  Fd end_;
  pid_t other_ = -1;
};

TEST_F(TwoNodesTest, RunAllKinds) {
  Start("RunsAllKinds");
  ReduceAll();
  for (uint32_t seed = 1; seed <= kPrograms; ++seed) RunProgram(seed);
}

// NCCL notices it (peer_death=error).
TEST_F(TwoNodesTest, APeerDies) {
  Start("Dies");
  runner().Run(SomeRun(0));
  EXPECT_TRUE(Ended(0).ok()) << Ended(0).message();
  end_.Reset();
  runner().Run(SomeRun(1));
  EXPECT_THAT(std::string(Ended(1).message()),
              HasSubstr("remote process exited"));
  EXPECT_EQ(Ended(1).code(), Code::kUnavailable);
}

}  // namespace
}  // namespace maypole
