#include "coordinator/service/peer.h"

#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

TEST(PeerAddressTest, IsTheAddressWithoutThePort) {
  EXPECT_EQ(PeerAddress("ipv4:10.0.0.7:4001"), "10.0.0.7");
  EXPECT_EQ(PeerAddress("ipv6:[fd00::7]:4001"), "fd00::7");
  EXPECT_EQ(PeerAddress("ipv6:%5Bfd00::7%5D:4001"), "fd00::7");
  EXPECT_EQ(PeerAddress("ipv6:%5B::1%5D:4001"), "::1");
}

TEST(PeerAddressTest, KeepsTheZoneOfALinkLocalAddress) {
  EXPECT_EQ(PeerAddress("ipv6:%5Bfe80::1%25eth0%5D:4001"), "fe80::1%eth0");
}

TEST(PeerAddressTest, AMappedAddressIsAnIpv4Address) {
  EXPECT_EQ(PeerAddress("ipv6:%5B::ffff:10.0.0.7%5D:4001"), "10.0.0.7");
}

TEST(PeerAddressTest, OthersHaveNone) {
  for (const char* peer : {"", "unix:/run/x", "ipv4:", "ipv4:10.0.0.7",
                           "ipv4:host:1", "ipv6:[fd00::7", "ipv6:[]:1"}) {
    EXPECT_EQ(PeerAddress(peer), "") << peer;
  }
}

TEST(SamePeerTest, ComparesAddressAndPort) {
  EXPECT_TRUE(SamePeer("ipv4:10.0.0.7:1", "ipv6:[::ffff:10.0.0.7]:1"));
  EXPECT_TRUE(SamePeer("ipv6:%5Bfe80::1%252%5D:1", "ipv6:[fe80::1%eth0]:1"));
  EXPECT_FALSE(SamePeer("ipv4:10.0.0.7:1", "ipv4:10.0.0.7:11"));
  EXPECT_FALSE(SamePeer("ipv4:10.0.0.7:1", "ipv4:10.0.0.8:1"));
  EXPECT_FALSE(SamePeer("", "ipv4:10.0.0.8:1"));
}

}  // namespace
}  // namespace maypole::coordinator
