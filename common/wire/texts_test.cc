#include "common/wire/texts.h"

#include <string>

#include "common/wire/utf8.h"
#include "gtest/gtest.h"

namespace maypole {
namespace {

TEST(Utf8, IsWhatProtobufAccepts) {
  for (const std::string text :
       {"", "a", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80"}) {
    EXPECT_TRUE(IsUtf8(text)) << text;
    EXPECT_EQ(ToUtf8(text), text);
  }
  // A lone byte, a cut character, a surrogate, too long a form, too great.
  for (const std::string text : {"\xff", "x\xe2\x82", "\xed\xa0\x80",
                                 "\xc0\xaf", "\xf4\x90\x80\x80"}) {
    EXPECT_FALSE(IsUtf8(text));
    EXPECT_TRUE(IsUtf8(ToUtf8(text)));
  }
  EXPECT_EQ(ToUtf8("a\xff\xc3\xa4"), "a\xef\xbf\xbd\xc3\xa4");
}

TEST(Texts, BytesTravelAsTheyAre) {
  proto::ExecutorMessage m;
  m.mutable_timeline_request()->set_path("/tmp/\xff.json");
  proto::ExecutorMessage arrived;
  ASSERT_TRUE(arrived.ParseFromString(m.SerializeAsString()));
  EXPECT_EQ(arrived.timeline_request().path(), "/tmp/\xff.json");
}

TEST(Texts, AreMadeUtf8WhereverTheyAre) {
  const std::string bad = "\xff", good = "\xef\xbf\xbd";
  proto::ExecutorMessage m;
  m.mutable_timeline_request()->set_path(bad);
  EXPECT_TRUE(MakeTextsUtf8(&m));
  EXPECT_EQ(m.timeline_request().path(), good);
  EXPECT_FALSE(MakeTextsUtf8(&m));
  proto::NodeState* state = m.mutable_node_state();
  EXPECT_FALSE(MakeTextsUtf8(&m));
  state->mutable_end()->set_message(bad);
  state->mutable_timeline()->set_path(bad);
  state->add_decisions()->mutable_set_reply()->set_message(bad);
  EXPECT_TRUE(MakeTextsUtf8(&m));
  EXPECT_EQ(state->end().message(), good);
  EXPECT_EQ(state->timeline().path(), good);
  EXPECT_EQ(state->decisions(0).set_reply().message(), good);

  proto::CoordinatorMessage c;
  c.mutable_epoch_end()->set_message(bad);
  EXPECT_TRUE(MakeTextsUtf8(&c));
  EXPECT_EQ(c.epoch_end().message(), good);
  c.mutable_execute();
  EXPECT_FALSE(MakeTextsUtf8(&c));
}

}  // namespace
}  // namespace maypole
