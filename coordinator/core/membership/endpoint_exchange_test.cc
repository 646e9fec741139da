#include "coordinator/core/membership/endpoint_exchange.h"

#include "coordinator/core/testing/epoch_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

proto::Endpoint Endpoint(const std::vector<std::string>& addresses,
                         uint32_t nccl = 0) {
  proto::Endpoint m;
  m.mutable_addresses()->Assign(addresses.begin(), addresses.end());
  m.set_nccl_version(nccl);
  return m;
}

TEST(EndpointExchangeTest, EachNodeGetsTheAddressesThatAreForIt) {
  EpochBed bed(2);
  EndpointExchange endpoints(&bed.nodes);
  ASSERT_TRUE(endpoints.OnEndpoint(1, Endpoint({"b0", "b1"}, 22)).ok());
  EXPECT_THAT(bed.Take(), IsEmpty());
  EXPECT_EQ(endpoints.nccl_version(), 0u);
  ASSERT_TRUE(endpoints.OnEndpoint(0, Endpoint({"a0", "a1"}, 22)).ok());
  const auto sent = bed.Take();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_THAT(sent[0].second.endpoints().addresses(), ElementsAre("", "b0"));
  EXPECT_THAT(sent[1].second.endpoints().addresses(), ElementsAre("a1", ""));
  EXPECT_EQ(sent[1].second.endpoints().nccl_version(), 22u);
  EXPECT_EQ(endpoints.nccl_version(), 22u);
}

TEST(EndpointExchangeTest, DifferentVersionsOfNcclAreNone) {
  EpochBed bed(2);
  EndpointExchange endpoints(&bed.nodes);
  ASSERT_TRUE(endpoints.OnEndpoint(0, Endpoint({"", "a"}, 22)).ok());
  ASSERT_TRUE(endpoints.OnEndpoint(1, Endpoint({"b", ""}, 23)).ok());
  EXPECT_EQ(endpoints.nccl_version(), 0u);
  EXPECT_EQ(bed.Take()[0].second.endpoints().nccl_version(), 0u);
  EXPECT_THAT(bed.TakeLog(), ElementsAre(HasSubstr("no_nccl job=j epoch=5 "
                                                   "n0=22 n1=23")));
}

TEST(EndpointExchangeTest, OneForEachNodeAndOnce) {
  EpochBed bed(2);
  EndpointExchange endpoints(&bed.nodes);
  EXPECT_FALSE(endpoints.OnEndpoint(0, Endpoint({"a"})).ok());
  ASSERT_TRUE(endpoints.OnEndpoint(0, Endpoint({"", "a"})).ok());
  EXPECT_FALSE(endpoints.OnEndpoint(0, Endpoint({"", "a"})).ok());
}

}  // namespace
}  // namespace maypole::coordinator
