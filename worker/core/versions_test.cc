// Ranks of different versions on one node, and nodes of different versions in
// one epoch.
#include "common/wire/versions.h"

#include <string>

#include "gmock/gmock.h"
#include "worker/core/testing/core_testing.h"

namespace maypole::worker {
namespace {

class VersionsTest : public ExecutorCoreTest {
 protected:
  explicit VersionsTest(VersionRange own = {1, 2})
      : ExecutorCoreTest(kMaxSlots, 0, own) {}

  static session::Hello HelloOf(int rank, VersionRange versions, int size = 2) {
    session::Hello hello = MakeHello(rank, size, rank, 2);
    hello.header.version = versions.oldest;
    hello.newest_version = versions.newest;
    return hello;
  }
  // The version of the board of these two ranks.
  uint32_t BoardOf(VersionRange a, VersionRange b) {
    core_.OnClient(1, HelloOf(0, a), 1000);
    core_.OnClient(2, HelloOf(1, b), 1001);
    core_.OnCoordinator(StartMessage(1, 1));
    const auto created = Take<CreateBoard>();
    return created.size() == 1 ? created[0].version : 0;
  }
  // Why an epoch of two nodes of these versions is refused; "" if it is not.
  std::string StartError(uint32_t own, uint32_t other) {
    Join(4);
    Drop();
    proto::CoordinatorMessage start = StartMessage(1, 2);
    start.mutable_epoch_start()->mutable_nodes(0)->set_protocol_version(own);
    start.mutable_epoch_start()->mutable_nodes(1)->set_protocol_version(other);
    core_.OnCoordinator(start);
    std::string failed, refused;
    for (Action& a : core_.TakeActions()) {
      if (const auto* sent = std::get_if<SendToCoordinator>(&a)) {
        failed = sent->message.failed().message();
      } else if (const auto* r = std::get_if<RefuseClient>(&a)) {
        refused = r->text;
      }
    }
    EXPECT_EQ(failed, refused);
    return refused;
  }
};

TEST_F(VersionsTest, TheBoardHasTheSmallestVersionOfTheNode) {
  EXPECT_EQ(BoardOf({1, 2}, {1, 1}), 1u);
}

TEST_F(VersionsTest, NewRanksGetANewBoard) {
  EXPECT_EQ(BoardOf({1, 2}, {1, 3}), 2u);
}

TEST_F(VersionsTest, ARankThatCannotUseTheOthersBoardIsRefused) {
  core_.OnClient(1, HelloOf(0, {1, 1}), 1000);
  core_.OnClient(2, HelloOf(1, {2, 3}), 1001);
  const auto refused = Take<RefuseClient>();
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].client, 2u);
  EXPECT_EQ(refused[0].code, Code::kFailedPrecondition);
  EXPECT_EQ(refused[0].text,
            "the ranks of a node must have a version in common: libmaypole of "
            "rank 0 speaks protocol version 1, but libmaypole of rank 1 speaks "
            "protocol versions 2 to 3; upgrade libmaypole of rank 0");
}

TEST_F(VersionsTest, NodesOfBothVersionsStart) {
  EXPECT_EQ(StartError(2, 1), "");
}

TEST_F(VersionsTest, ChunksHaveTheSizeThatTheCoordinatorSays) {
  Join(2);
  proto::CoordinatorMessage start = StartMessage(1, 1);
  start.mutable_epoch_start()->set_chunk_bytes(262144);
  core_.OnCoordinator(start);
  const auto created = Take<CreateBoard>();
  ASSERT_EQ(created.size(), 1u);
  EXPECT_EQ(created[0].config.chunk_bytes, 262144u);
}

class StrictVersionsTest : public VersionsTest {
 protected:
  StrictVersionsTest() : VersionsTest({2, 3}) {}
};

TEST_F(StrictVersionsTest, ANodeThatIsTooOldIsNamed) {
  const std::string expected =
      "the job cannot start: maypole-worker on node n1 (host host1) speaks "
      "protocol version 1, but maypole-worker on node n0 (host host0) speaks "
      "protocol versions 2 to 3; upgrade maypole-worker on node n1 (host "
      "host1)";
  EXPECT_EQ(StartError(2, 1), expected);
}

}  // namespace
}  // namespace maypole::worker
