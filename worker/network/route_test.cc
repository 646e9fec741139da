#include "worker/network/route.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

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

TEST(RouteTest, ALookUpThatHangsHoldsNobodyUp) {
  std::promise<void> end;
  const std::shared_future<void> ended = end.get_future().share();
  std::atomic<int> asked{0};
  const auto found = FindUntil([&] { return ++asked > 2; },
                               [ended]() -> absl::StatusOr<std::string> {
                                 ended.wait();
                                 return "too late";
                               });
  EXPECT_EQ(found.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(asked.load(), 3);
  end.set_value();
  EXPECT_EQ(*FindUntil([] { return false; },
                       [] { return OwnAddress("127.0.0.1:4001", {}); }),
            "127.0.0.1");
}

TEST(RouteTest, AddressesAndInterfacesOfThisMachine) {
  EXPECT_EQ(AddressOfInterface("lo"), "127.0.0.1");
  EXPECT_EQ(AddressOfInterface("no such one"), "");
  EXPECT_EQ(InterfaceOf("127.0.0.1"), "lo");
  EXPECT_EQ(InterfaceOf("192.0.2.1"), "");  // of no machine (RFC 5737)
  EXPECT_EQ(InterfaceOf("a name"), "");
}

}  // namespace
}  // namespace maypole::worker
