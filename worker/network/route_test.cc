#include "worker/network/route.h"

#include <gtest/gtest.h>

namespace maypole::worker {
namespace {

TEST(RouteTest, LoopbackLeadsToLoopback) {
  EXPECT_EQ(*LocalAddressTowards("127.0.0.1:4001"), "127.0.0.1");
  EXPECT_EQ(LocalAddressTowards("127.0.1.1:4001")->substr(0, 4), "127.");
  EXPECT_FALSE(LocalAddressTowards("4001").ok());
  EXPECT_FALSE(LocalAddressTowards("no.such.host.invalid:1").ok());
}

TEST(RouteTest, WithoutAnybodyElsewhereItIsTheRouteToTheCoordinator) {
  EXPECT_EQ(*OwnAddress("127.0.0.1:4001", {}), "127.0.0.1");
  EXPECT_EQ(*OwnAddress("127.0.1.1:4001", {"", "127.0.0.1", "::1"}),
            *LocalAddressTowards("127.0.1.1:4001"));
}

}  // namespace
}  // namespace maypole::worker
