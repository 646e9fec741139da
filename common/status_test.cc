#include "common/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "common/status_or.h"

namespace maypole {
namespace {

TEST(StatusTest, UpdateKeepsTheFirstError) {
  Status s;
  s.Update(Status());
  EXPECT_TRUE(s.ok());
  s.Update(Status(Code::kAborted, "first"));
  s.Update(Status(Code::kInternal, "second"));
  s.Update(Status());
  EXPECT_EQ(s.code(), Code::kAborted);
  EXPECT_EQ(s.message(), "first");
}

StatusOr<std::unique_ptr<std::string>> Make(bool possible) {
  if (!possible) return Status(Code::kNotFound, "none");
  auto made = std::make_unique<std::string>("made");
  return made;
}

TEST(StatusOrTest, AnErrorHasNoValue) {
  const auto none = Make(false);
  EXPECT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), Code::kNotFound);
  EXPECT_EQ(none.status().message(), "none");
}

TEST(StatusOrTest, AValueCanBeMovedOut) {
  auto made = Make(true);
  ASSERT_TRUE(made.ok());
  EXPECT_TRUE(made.status().ok());
  EXPECT_EQ(**made, "made");
  EXPECT_EQ((*made)->size(), 4u);
  const std::unique_ptr<std::string> owner = *std::move(made);
  EXPECT_EQ(*owner, "made");
}

TEST(StatusOrTest, AValueCanBeChanged) {
  StatusOr<std::string> text = std::string("a");
  *text += "b";
  text->push_back('c');
  const StatusOr<std::string> copy = text;
  EXPECT_EQ(*copy, "abc");
  EXPECT_EQ(copy->size(), 3u);
  text = Status(Code::kUnknown, "lost");
  EXPECT_FALSE(text.ok());
}

}  // namespace
}  // namespace maypole
