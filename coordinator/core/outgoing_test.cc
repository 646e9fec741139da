#include "coordinator/core/outgoing.h"

#include <string>

#include "common/wire/link.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using google::protobuf::util::MessageDifferencer;

proto::CoordinatorMessage Execute() {
  proto::CoordinatorMessage m;
  m.set_epoch(3);
  proto::Run* run = m.mutable_execute()->add_runs();
  run->set_run(7);
  run->add_operations()->set_id(11);
  return m;
}

TEST(OutgoingTest, CopiesShareTheirBytesButNotTheirNumbers) {
  const Outgoing all(Execute());
  Outgoing a = all, b = all;
  a.set_sequence(1);
  a.set_acknowledged(300);
  b.set_sequence(2);
  EXPECT_EQ(a.Body().get(), b.Body().get());
  proto::CoordinatorMessage expected = Execute();
  expected.set_sequence(1);
  expected.set_acknowledged(300);
  EXPECT_TRUE(MessageDifferencer::Equals(a.ToMessage(), expected));
  expected.set_sequence(2);
  expected.clear_acknowledged();
  EXPECT_TRUE(MessageDifferencer::Equals(b.ToMessage(), expected));
  EXPECT_EQ(a.ByteSize(), a.ToMessage().ByteSizeLong());
}

TEST(OutgoingTest, TheReceiverMergesItsOwnPart) {
  proto::CoordinatorMessage shared;
  shared.mutable_epoch_start()->set_epoch(1);
  shared.mutable_epoch_start()->add_nodes()->set_node("n0");
  shared.mutable_epoch_start()->add_nodes()->set_node("n1");
  proto::CoordinatorMessage own;
  own.mutable_epoch_start()->set_node_index(1);
  own.mutable_epoch_start()->add_clients(99);
  const Outgoing all(shared);
  Outgoing m = all.With(own);
  m.set_sequence(5);
  EXPECT_EQ(m.Body().get(), all.Body().get());
  proto::CoordinatorMessage expected = shared;
  expected.set_sequence(5);
  expected.mutable_epoch_start()->set_node_index(1);
  expected.mutable_epoch_start()->add_clients(99);
  EXPECT_TRUE(MessageDifferencer::Equals(m.ToMessage(), expected));
  EXPECT_EQ(all.ToMessage().epoch_start().clients_size(), 0);
}

TEST(OutgoingTest, NumbersThatAMessageHasAreNotInTheSharedBytes) {
  proto::CoordinatorMessage numbered = Execute();
  numbered.set_sequence(8);
  numbered.set_acknowledged(9);
  Outgoing m(numbered);
  EXPECT_TRUE(MessageDifferencer::Equals(m.ToMessage(), numbered));
  m.set_sequence(10);
  EXPECT_EQ(m.ToMessage().sequence(), 10u);
}

TEST(OutgoingTest, ABareAcknowledgementHasNoBody) {
  Link<Outgoing> link(10);
  EXPECT_EQ(link.OnReceived(1, 0), Receipt::kNew);
  const Outgoing ack = link.Bare({});
  EXPECT_TRUE(ack.IsBareAck());
  EXPECT_EQ(ack.Body(), nullptr);
  EXPECT_EQ(ack.ToMessage().acknowledged(), 1u);
  EXPECT_FALSE(Outgoing(Execute()).IsBareAck());
}

}  // namespace
}  // namespace maypole::coordinator
