#include "client/launcher/process/function_files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

namespace maypole::launcher {
namespace {

std::string NewDirectory() {
  std::string path = testing::TempDir() + "/filesXXXXXX";
  EXPECT_NE(mkdtemp(path.data()), nullptr);
  return path;
}

std::string Content(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(FunctionFilesTest, ResultsGrowAndArePrivate) {
  const std::string directory = NewDirectory();
  const std::string path = ResultFile(directory, 12);
  EXPECT_EQ(path, directory + "/result.12");
  ASSERT_TRUE(AppendPrivately(path, "one,").ok());
  ASSERT_TRUE(AppendPrivately(path, "").ok());
  ASSERT_TRUE(AppendPrivately(path, std::string("two\0three", 9)).ok());
  EXPECT_EQ(Content(path), std::string("one,two\0three", 13));
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST(FunctionFilesTest, NoLinkIsFollowed) {
  const std::string directory = NewDirectory();
  const std::string path = ResultFile(directory, 0);
  ASSERT_EQ(symlink((directory + "/elsewhere").c_str(), path.c_str()), 0);
  EXPECT_EQ(AppendPrivately(path, "x").message().find("cannot write " + path),
            0u);
  EXPECT_NE(access((directory + "/elsewhere").c_str(), F_OK), 0);
}

TEST(FunctionFilesTest, AFunctionIsReadInPartsOfOneFrame) {
  const std::string path = FunctionFile(NewDirectory());
  const std::string function(700000, 'f');
  ASSERT_TRUE(AppendPrivately(path, function).ok());
  std::string read;
  size_t parts = 0;
  ASSERT_TRUE(ReadInParts(path, [&](std::string_view part) {
                EXPECT_LE(part.size(), size_t{1} << 19);
                read += part;
                ++parts;
              }).ok());
  EXPECT_EQ(read, function);
  EXPECT_GT(parts, 1u);
  EXPECT_FALSE(ReadInParts(path + "?", [](std::string_view) {}).ok());
}

TEST(FunctionFilesTest, TheOutcomeNamesTheRank) {
  std::string directory = NewDirectory();
  ASSERT_TRUE(WriteOutcome(directory, {.rank = 3, .cause = "it died"}).ok());
  EXPECT_EQ(Content(directory + "/outcome"), "3\nit died\n");
  directory = NewDirectory();
  ASSERT_TRUE(WriteOutcome(directory, {}).ok());
  EXPECT_EQ(Content(directory + "/outcome"), "");
}

}  // namespace
}  // namespace maypole::launcher
