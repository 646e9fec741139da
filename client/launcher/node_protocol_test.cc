#include "client/launcher/node_protocol.h"

#include <gtest/gtest.h>

#include <random>

namespace maypole::launcher {
namespace {

NodeJob SomeJob() {
  return {.host = "b",
          .node = 1,
          .nodes = 2,
          .ranks = 4,
          .first_rank = 2,
          .local_size = 2,
          .job = "j",
          .token = "t",
          .start_timeout_s = 9,
          .directory = "/a b",
          .environment = {"A=1", "B=", std::string("C=\n\xff\0x", 6)},
          .command = {"python3", "", "train.py"},
          .verbose = true,
          .start_agent = true,
          .coordinators = {"10.0.0.1:1", "[fd00::1]:1"},
          .secret = "s",
          .interfaces = {"eth0"}};
}

std::vector<NodeMessage> OneOfEach() {
  return {SomeJob(),
          StartRanks(),
          SignalRanks{.signal = 9, .hurry = true},
          NodeHello{.head_address = "10.0.0.1"},
          NodeReady{.agent = "pid=5"},
          NodeRefused{.why = "no"},
          RankStarted{.rank = 3, .pid = 77},
          RankOutput{.rank = 2, .stream = 1, .bytes = std::string("\0\r\n", 3)},
          RankEnded{.rank = 2, .signaled = true, .value = 9},
          DaemonLost{.what = "x"}};
}

// All messages of a stream; what: how it ended.
std::vector<NodeMessage> ReadAll(FrameReader* reader, Status* what) {
  std::vector<NodeMessage> all;
  std::optional<NodeMessage> next;
  while ((*what = reader->Next(&next)).ok() && next) all.push_back(*next);
  return all;
}

TEST(NodeProtocolTest, EveryMessageComesAsItWas) {
  std::string stream;
  for (const NodeMessage& m : OneOfEach()) stream += EncodeFrame(m);
  FrameReader reader(kMaxJobFrameBytes);
  reader.Feed(stream);
  Status end;
  std::vector<NodeMessage> got = ReadAll(&reader, &end);
  EXPECT_TRUE(end.ok());
  ASSERT_EQ(got.size(), std::variant_size_v<NodeMessage>);
  std::string again;
  for (const NodeMessage& m : got) again += EncodeFrame(m);
  EXPECT_EQ(again, stream);
  const auto& job = std::get<NodeJob>(got[0]);
  EXPECT_EQ(job.directory, "/a b");
  EXPECT_EQ(job.environment, SomeJob().environment);
  EXPECT_EQ(job.command, SomeJob().command);
  EXPECT_EQ(job.coordinators[1], "[fd00::1]:1");
  EXPECT_TRUE(job.start_agent);
  EXPECT_FALSE(job.running_agent);
  EXPECT_EQ(std::get<RankOutput>(got[7]).bytes, std::string("\0\r\n", 3));
  EXPECT_EQ(std::get<RankEnded>(got[8]).value, 9);
}

TEST(NodeProtocolTest, BytesMayComeOneByOne) {
  std::string stream;
  for (const NodeMessage& m : OneOfEach()) stream += EncodeFrame(m);
  FrameReader reader(kMaxJobFrameBytes);
  size_t got = 0;
  for (char byte : stream) {
    reader.Feed(std::string_view(&byte, 1));
    Status end;
    got += ReadAll(&reader, &end).size();
    ASSERT_TRUE(end.ok());
  }
  EXPECT_EQ(got, std::variant_size_v<NodeMessage>);
}

TEST(NodeProtocolTest, AFrameThatIsTooLongIsRefusedAtItsLength) {
  FrameReader reader(100);
  reader.Feed(std::string("\x65\0\0\0", 4));
  std::optional<NodeMessage> next;
  Status status = reader.Next(&next);
  EXPECT_EQ(status.message(),
            "what came through ssh makes no sense (a frame of 101 bytes; 1 to "
            "100 are expected)");
  reader.Feed(EncodeFrame(StartRanks()));
  EXPECT_FALSE(reader.Next(&next).ok());
}

TEST(NodeProtocolTest, HostileFramesAreErrors) {
  const std::string cases[] = {
      std::string("\0\0\0\0", 4),              // nothing in it
      std::string("\xff\xff\xff\xff", 4),      // endless
      std::string("\1\0\0\0\x63", 5),          // no such message
      std::string("\2\0\0\0\1x", 6),           // more than its fields
      std::string("\5\0\0\0\5\x7f\0\0\0", 9),  // a text longer than the frame
      std::string("\5\0\0\0\5\xff\xff\xff\xff", 9),  // of negative length
      std::string("\6\0\0\0\2\t\0\0\0\2", 10),       // a truth value of 2
      std::string("\3\0\0\0\6\1\2", 7),              // a number cut off
  };
  for (const std::string& bytes : cases) {
    FrameReader reader(kMaxNodeFrameBytes);
    reader.Feed(bytes);
    std::optional<NodeMessage> next;
    EXPECT_EQ(reader.Next(&next).code(), Code::kDataLoss)
        << testing::PrintToString(bytes);
    EXPECT_FALSE(next);
  }
}

TEST(NodeProtocolTest, AListCannotClaimMoreThanIsThere) {
  NodeJob job;
  job.environment = {"A=1"};
  std::string frame = EncodeFrame(job);
  size_t at = frame.find("A=1") - 8;  // its count
  frame.replace(at, 4, "\xff\xff\xff\x7f");
  FrameReader reader(kMaxJobFrameBytes);
  reader.Feed(frame);
  std::optional<NodeMessage> next;
  EXPECT_FALSE(reader.Next(&next).ok());
}

TEST(NodeProtocolTest, AnyDamageIsAnErrorOrAnotherMessage) {
  std::string stream;
  for (const NodeMessage& m : OneOfEach()) stream += EncodeFrame(m);
  std::mt19937 random(7);
  for (int round = 0; round < 20000; ++round) {
    std::string bad = stream;
    for (int i = 0; i < 3; ++i) {
      bad[random() % bad.size()] = static_cast<char>(random());
    }
    bad.resize(random() % (bad.size() + 1));
    FrameReader reader(kMaxJobFrameBytes);
    reader.Feed(bad);
    Status end;
    // No more messages than frames of the least size.
    EXPECT_LE(ReadAll(&reader, &end).size(), bad.size() / 5);
  }
}

TEST(PreambleTest, IsFoundBehindWhatAShellPrints) {
  PreambleReader reader;
  std::string rest;
  std::string stream = "Welcome!\nno newline" + Preamble() + "frames";
  size_t found = 0;
  for (size_t i = 0; i < stream.size() && found == 0; ++i) {
    if (reader.Feed(stream.substr(i, 1), &rest)) found = i + 1;
  }
  EXPECT_EQ(stream.substr(found) + rest, "frames");
  EXPECT_EQ(reader.chatter(), "Welcome!\nno newline");
  EXPECT_EQ(reader.protocol(), kNodeProtocol);
  EXPECT_EQ(reader.version(), "0.1.0");
  EXPECT_FALSE(reader.overrun());
}

TEST(PreambleTest, EndlessChatterIsAnOverrun) {
  PreambleReader reader;
  std::string rest;
  EXPECT_FALSE(reader.Feed(std::string(kMaxChatterBytes, 'x'), &rest));
  EXPECT_FALSE(reader.overrun());
  EXPECT_FALSE(reader.Feed("x", &rest));
  EXPECT_TRUE(reader.overrun());
}

TEST(PreambleTest, AnotherProtocolIsTold) {
  PreambleReader reader;
  std::string rest;
  EXPECT_TRUE(reader.Feed("\nmaypole-node protocol=77 version=9.9\n", &rest));
  EXPECT_EQ(reader.protocol(), 77);
  EXPECT_EQ(reader.version(), "9.9");
}

}  // namespace
}  // namespace maypole::launcher
