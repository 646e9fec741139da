#include "client/launcher/node/node_protocol.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "common/version.h"

namespace maypole::launcher {
namespace {

FromNode Output(int rank, const std::string& bytes) {
  FromNode m;
  m.mutable_rank_output()->set_rank(rank);
  m.mutable_rank_output()->set_bytes(bytes);
  return m;
}

std::vector<FromNode> SomeMessages() {
  std::vector<FromNode> all(2);
  all[0].mutable_hello()->set_head_address("10.0.0.1");
  all[1].mutable_refused();
  all.push_back(Output(2, std::string("\0\r\n\xff", 4)));
  all.push_back(Output(0, std::string(300, 'x')));
  return all;
}

std::string Stream() {
  std::string stream;
  for (const FromNode& m : SomeMessages()) stream += EncodeFrame(m);
  return stream;
}

// All messages of a stream; *end: how it ended.
std::vector<FromNode> ReadAll(FrameReader* reader, Status* what) {
  std::vector<FromNode> all;
  FromNode next;
  bool found = false;
  while ((*what = reader->Next(&next, &found)).ok() && found) {
    all.push_back(next);
  }
  return all;
}

// The error for these bytes.
std::string Complaint(const std::string& bytes, size_t max_frame = 100) {
  FrameReader reader(max_frame);
  reader.Feed(bytes);
  FromNode next;
  bool found = false;
  std::string said = reader.Next(&next, &found).message();
  EXPECT_FALSE(found);
  reader.Feed(EncodeFrame(SomeMessages()[0]));
  EXPECT_EQ(reader.Next(&next, &found).message(),
            said);  // the error is permanent
  EXPECT_FALSE(found);
  return said;
}

TEST(NodeProtocolTest, MessagesComeAsTheyWere) {
  FrameReader reader(kMaxNodeFrameBytes);
  reader.Feed(Stream());
  Status end;
  std::vector<FromNode> got = ReadAll(&reader, &end);
  EXPECT_TRUE(end.ok());
  std::string again;
  for (const FromNode& m : got) again += EncodeFrame(m);
  EXPECT_EQ(again, Stream());
  EXPECT_EQ(got.at(2).rank_output().bytes(), std::string("\0\r\n\xff", 4));
}

TEST(NodeProtocolTest, UsersTextsNeedNotBeUtf8) {
  ToNode message;
  message.mutable_job()->add_environment("A=\xff\n");
  message.mutable_job()->add_command("");
  FrameReader reader(kMaxJobFrameBytes);
  reader.Feed(EncodeFrame(message));
  ToNode got;
  bool found = false;
  EXPECT_TRUE(reader.Next(&got, &found).ok());
  ASSERT_TRUE(found);
  EXPECT_EQ(got.job().environment(0), "A=\xff\n");
  EXPECT_EQ(got.job().command_size(), 1);
}

TEST(NodeProtocolTest, BytesMayComeOneByOne) {
  FrameReader reader(kMaxNodeFrameBytes);
  size_t got = 0;
  for (char byte : Stream()) {
    reader.Feed(std::string_view(&byte, 1));
    Status end;
    got += ReadAll(&reader, &end).size();
    ASSERT_TRUE(end.ok());
  }
  EXPECT_EQ(got, SomeMessages().size());
}

TEST(NodeProtocolTest, HostileFramesAreErrors) {
  const std::string kSense = "invalid data came through ssh (";
  EXPECT_EQ(Complaint("\x65"),
            kSense + "a frame of 101 bytes; 1 to 100 are expected)");
  EXPECT_EQ(Complaint(std::string(1, '\0')),
            kSense + "a frame of 0 bytes; 1 to 100 are expected)");
  EXPECT_EQ(Complaint("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
            kSense +
                "a frame of 18446744073709551615 bytes; 1 to 100 are "
                "expected)");
  EXPECT_EQ(Complaint(std::string(11, '\xff')),
            kSense + "an unterminated length)");
  // A text longer than its frame.
  EXPECT_EQ(Complaint("\x04\x1a\x7f\x0a\x01"),
            kSense + "a frame of 4 bytes that is not a message)");
}

TEST(NodeProtocolTest, AnyDamageIsAnErrorOrAnotherMessage) {
  const std::string stream = Stream();
  std::mt19937 random(7);
  for (int round = 0; round < 20000; ++round) {
    std::string bad = stream;
    for (int i = 0; i < 3; ++i) {
      bad[random() % bad.size()] = static_cast<char>(random());
    }
    bad.resize(random() % (bad.size() + 1));
    FrameReader reader(kMaxNodeFrameBytes);
    reader.Feed(bad);
    Status end;
    // No more messages than there can be frames of the smallest size.
    EXPECT_LE(ReadAll(&reader, &end).size(), bad.size() / 2);
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
  EXPECT_EQ(reader.version(), kVersion);
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
