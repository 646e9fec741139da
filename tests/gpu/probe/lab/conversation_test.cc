// Its own main: it starts itself again as the actors.
#include "tests/gpu/probe/lab/conversation.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/gpu/probe/lab/flag_page.h"

namespace maypole::probe {
namespace {

// "say WORDS": says them; "page": writes 7 into the page that came along;
// "fail"; "wait": is silent; "die".
absl::Status PlayEcho(Stage& stage) {
  return Serve(stage, [&](Words& words) -> absl::StatusOr<std::string> {
    if (words[0] == "say") return words.Rest(1);
    if (words[0] == "page") {
      const auto page = SharedMemory::Map(words.TakeFd(), 4096);
      if (!page.ok()) return page.status();
      StoreWord(*page, 3, 7);
      return "written";
    }
    if (words[0] == "fail") return absl::DataLossError("two words");
    if (words[0] == "die") _exit(5);
    pause();
    return "";
  });
}

absl::StatusCode CodeOf(const absl::StatusOr<Words>& words) {
  return words.status().code();
}

class ConversationTest : public testing::Test {
 protected:
  Actor Start() {
    absl::StatusOr<Actor> actor = lab_.Start("echo");
    EXPECT_TRUE(actor.ok()) << actor.status();
    return *std::move(actor);
  }
  Report report_;
  Lab lab_{Options{.fake = true}, &report_};
};

TEST_F(ConversationTest, WordsAndNumbers) {
  Actor actor = Start();
  const auto answer =
      Ask(actor, "say right 12 -3 2.5 end", "right", Seconds(10));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->size(), 5u);
  EXPECT_EQ(answer->Integer(1), 12);
  EXPECT_EQ(answer->Integer(2), -3);
  EXPECT_EQ(answer->Number(3), 2.5);
  EXPECT_EQ((*answer)[4], "end");
  EXPECT_EQ(answer->Rest(3), "2.5 end");
  EXPECT_EQ(answer->Numbers(1), (std::vector<double>{12, -3, 2.5, 0}));
  // What is missing is empty, and 0.
  EXPECT_EQ((*answer)[5], "");
  EXPECT_EQ(answer->Integer(5), 0);
  EXPECT_EQ(answer->Rest(7), "");
}

TEST_F(ConversationTest, DescriptorsComeAlong) {
  Actor actor = Start();
  const auto page = SharedMemory::Create(4096);
  ASSERT_TRUE(page.ok());
  const int fd = page->fd();
  ASSERT_TRUE(Ask(actor, "page", "written", Seconds(10), {&fd, 1}).ok());
  EXPECT_EQ(LoadWord(*page, 3), 7u);
  EXPECT_TRUE(AwaitWord(*page, 3, 7, Seconds(0)));
  EXPECT_FALSE(AwaitWord(*page, 3, 8, Seconds(0.01)));
}

TEST_F(ConversationTest, AnErrorIsToldWithTheCommand) {
  Actor actor = Start();
  const auto answer = Ask(actor, "fail now", "right", Seconds(10));
  EXPECT_EQ(CodeOf(answer), absl::StatusCode::kDataLoss);
  EXPECT_EQ(answer.status().message(), "fail: two words");
}

TEST_F(ConversationTest, SilenceAndDeathAreNoAnswers) {
  Actor actor = Start();
  EXPECT_EQ(CodeOf(Ask(actor, "wait", "right", Seconds(0.05))),
            absl::StatusCode::kDeadlineExceeded);
  actor = Start();
  EXPECT_EQ(CodeOf(Ask(actor, "die", "right", Seconds(10))),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(CodeOf(Ask(actor, "say right", "right", Seconds(10))),
            absl::StatusCode::kUnavailable);
}

TEST_F(ConversationTest, AllAreAsked) {
  std::vector<Actor> actors;
  for (int i = 0; i < 3; ++i) actors.push_back(Start());
  const auto answers = AskAll(actors, "say here 1", "here", Seconds(10));
  ASSERT_TRUE(answers.ok()) << answers.status();
  EXPECT_EQ(answers->size(), 3u);
  actors[1].Kill();
  EXPECT_FALSE(AskAll(actors, "say here 1", "here", Seconds(10)).ok());
}

TEST_F(ConversationTest, ItEndsWithTheChannel) {
  Actor actor = Start();
  ASSERT_TRUE(Ask(actor, "say right", "right", Seconds(10)).ok());
  EXPECT_TRUE(actor.End(Seconds(10)).ok());
}

TEST_F(ConversationTest, ToHangIsMeasured) {
  AddTrouble(lab_, 6, "a", "round 3", absl::DeadlineExceededError("no end"));
  AddTrouble(lab_, 6, "b", "round 3", absl::InternalError("broken"));
  ASSERT_EQ(report_.rows().size(), 2u);
  EXPECT_EQ(report_.rows()[0].outcome, Outcome::kMeasured);
  EXPECT_EQ(report_.rows()[0].text, "HANGS: round 3: no end");
  EXPECT_EQ(report_.rows()[1].outcome, Outcome::kFailed);
}

TEST(SizeTextTest, Units) {
  EXPECT_EQ(SizeText(4 << 10), "4 KiB");
  EXPECT_EQ(SizeText(1 << 20), "1 MiB");
  EXPECT_EQ(SizeText(3 << 19), "1536 KiB");
  EXPECT_EQ(SizeText(uint64_t{1} << 30), "1024 MiB");
}

}  // namespace

const RoleTable& Roles() {
  static const auto* const kRoles = new RoleTable{{"echo", PlayEcho}};
  return *kRoles;
}

}  // namespace maypole::probe

int main(int argc, char** argv) {
  if (const auto status = maypole::probe::PlayRole(argc, argv)) return *status;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
