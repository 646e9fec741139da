// Two nodes with two GPUs each: this process and this program, started again
// with another $NCCL_HOSTID, so that the fake NCCL takes their GPUs for
// different ones.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "absl/strings/escaping.h"
#include "common/system/fd.h"
#include "worker/gpu/testing/collective_fixture.h"

namespace maypole::worker {
namespace {

using testing::HasSubstr;

constexpr char kId[] = "COMMUNICATOR_ID";  // in hexadecimal digits
constexpr char kEnd[] = "END_OF_TEST";     // a pipe that is closed then
constexpr uint32_t kNodes = 2;
constexpr uint32_t kPerGpu = 2;
constexpr uint64_t kBroadcast = 3001;  // elements

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

  void Join(uint32_t node, const std::string& id) {
    node_ = node;
    OpenRanks(kPerGpu);
    Connect(1, id, kNodes * kGpus, node * kGpus);
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
      const absl::Status s = Ended(i);
      ASSERT_TRUE(s.ok()) << s;
    }
    for (uint32_t i = 0; i < kCases.size(); ++i) {
      const Bytes wanted = WantedOf(kCases[i], i);
      for (uint32_t local = 0; local < ranks(); ++local) {
        EXPECT_EQ(Read(local, i, wanted.size()), wanted)
            << "case " << i << " of local rank " << local;
      }
    }
  }
  // From each rank.
  void Broadcast() {
    for (uint32_t root = 0; root < kNodes * kPerNode; ++root) {
      const bool here = root / kPerNode == node_;
      for (uint32_t local = 0; local < ranks(); ++local) {
        const uint32_t rank = node_ * kPerNode + local;
        Write(local, 0, SomeValues(DType::kFloat32, kBroadcast, 20 + rank));
      }
      runner().Run(RunOf(1, BroadcastOf(kBroadcast, 100 + root, root / kPerGpu,
                                        here ? root % kPerNode : kNoTensor)));
      const absl::Status s = Ended(100 + root);
      ASSERT_TRUE(s.ok()) << s;
      const Bytes wanted = SomeValues(DType::kFloat32, kBroadcast, 20 + root);
      for (uint32_t local = 0; local < ranks(); ++local) {
        EXPECT_EQ(Read(local, 0, wanted.size()), wanted)
            << "root " << root << ", local rank " << local;
      }
    }
  }
  GpuRun SomeRun(uint32_t slot) const {
    return RunOf(1, OperationOf({.elements = 10}, slot, 0));
  }

 private:
  uint32_t node_ = 0;
};

// --- The other node ----------------------------------------------------------

class OtherNode : public NodeTest {
 protected:
  static std::string Id() {
    const char* const id = std::getenv(kId);
    return absl::HexStringToBytes(id != nullptr ? id : "");
  }
  // If it were gone before, NCCL might say so before the GPUs here are done.
  static void WaitForOtherNode() {
    const char* const end = std::getenv(kEnd);
    char byte = 0;
    EXPECT_EQ(read(std::atoi(end != nullptr ? end : "-1"), &byte, 1), 0);
  }
};

TEST_F(OtherNode, DISABLED_ReducesAndBroadcasts) {
  Join(1, Id());
  ReduceAll();
  Broadcast();
  WaitForOtherNode();
}

TEST_F(OtherNode, DISABLED_Dies) {
  Join(1, Id());
  runner().Run(SomeRun(0));
  EXPECT_TRUE(Ended(0).ok()) << Ended(0);
  WaitForOtherNode();
  _exit(0);
}

// --- This node ---------------------------------------------------------------

class TwoNodesTest : public NodeTest {
 protected:
  void Start(const std::string& name) {
    const std::string id = *NewId(1);
    const std::string filter = "--gtest_filter=OtherNode.DISABLED_" + name;
    const std::string variable =
        std::string(kId) + "=" + absl::BytesToHexString(id);
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
    Join(0, id);
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

TEST_F(TwoNodesTest, ReduceAndBroadcast) {
  Start("ReducesAndBroadcasts");
  ReduceAll();
  Broadcast();
}

// NCCL finds out (peer_death=error).
TEST_F(TwoNodesTest, APeerDies) {
  Start("Dies");
  runner().Run(SomeRun(0));
  EXPECT_TRUE(Ended(0).ok()) << Ended(0);
  end_.Reset();
  runner().Run(SomeRun(1));
  EXPECT_THAT(std::string(Ended(1).message()),
              HasSubstr("remote process exited"));
  EXPECT_EQ(Ended(1).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace maypole::worker
