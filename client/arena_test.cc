#include "client/arena.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>

namespace maypole {
namespace {

constexpr uint64_t kPage = 4096;

class ArenaTest : public testing::Test {
 protected:
  ArenaTest() {
    BoardConfig config;
    config.size = config.local_size = 2;
    config.global_rank[1] = 1;
    config.slots = 64;
    config.arena_bytes = 16 * kPage;
    EXPECT_TRUE(Board::Create(config, &board_).ok());
    EXPECT_TRUE(Arena::Map(*board_, 1, &arena_).ok());
  }

  std::byte* Allocate(uint64_t bytes) {
    std::byte* p = nullptr;
    const Status s = arena_->Allocate(bytes, &p);
    EXPECT_TRUE(s.ok()) << s.message();
    return p;
  }
  // The bytes that the board's memory really takes.
  uint64_t Blocks() {
    struct stat st;
    EXPECT_EQ(fstat(board_->fd(), &st), 0);
    return static_cast<uint64_t>(st.st_blocks) * 512;
  }

  std::unique_ptr<Board> board_;
  std::shared_ptr<Arena> arena_;
};

TEST_F(ArenaTest, PeersSeeWhatIsWrittenAtTheOffsetThatFindTells) {
  std::byte* const first = Allocate(100);
  std::byte* const second = Allocate(2 * kPage + 1);
  uint64_t offset = 0;
  ASSERT_TRUE(arena_->Find(second + 128, 300, &offset));
  std::strcpy(reinterpret_cast<char*>(second + 128), "hello");
  EXPECT_STREQ(reinterpret_cast<char*>(board_->arena(1) + offset), "hello");
  std::strcpy(reinterpret_cast<char*>(board_->arena(1) + offset), "answer");
  EXPECT_STREQ(reinterpret_cast<char*>(second + 128), "answer");
  EXPECT_NE(first, second);
  EXPECT_EQ(arena_->allocated(), 4 * kPage);
}

TEST_F(ArenaTest, FindsOnlyAlignedRangesInside) {
  std::byte* const p = Allocate(16 * kPage);
  uint64_t offset = 0;
  EXPECT_TRUE(arena_->Find(p, 16 * kPage, &offset));
  EXPECT_FALSE(arena_->Find(p, 16 * kPage + 1, &offset));
  EXPECT_FALSE(arena_->Find(p + 4, 8, &offset));
  EXPECT_FALSE(arena_->Find(p - 64, 128, &offset));
  EXPECT_FALSE(arena_->Find(p + 16 * kPage, 64, &offset));
  std::byte elsewhere[64];
  EXPECT_FALSE(arena_->Find(elsewhere, 64, &offset));
}

TEST_F(ArenaTest, MemoryIsTakenWhenAllocatedAndGivenBackWhenFreed) {
  const uint64_t before = Blocks();
  std::byte* const p = Allocate(10 * kPage);
  EXPECT_EQ(Blocks(), before + 10 * kPage);
  std::memset(p, 1, 10 * kPage);
  arena_->Free(p);
  EXPECT_EQ(Blocks(), before);
  EXPECT_EQ(arena_->allocated(), 0u);
  std::byte* const again = Allocate(10 * kPage);
  EXPECT_EQ(again[5000], std::byte{0});
}

TEST_F(ArenaTest, HolesGrowTogetherAgain) {
  std::byte* const a = Allocate(4 * kPage);
  std::byte* const b = Allocate(4 * kPage);
  std::byte* const c = Allocate(4 * kPage);
  arena_->Free(a);
  arena_->Free(c);
  std::byte* p = nullptr;
  EXPECT_FALSE(arena_->Allocate(9 * kPage, &p).ok());
  arena_->Free(b);
  EXPECT_EQ(Allocate(16 * kPage), a);
}

TEST_F(ArenaTest, AFullArenaIsAnErrorThatSaysWhatToDo) {
  Allocate(12 * kPage);
  std::byte* p = nullptr;
  const Status s = arena_->Allocate(5 * kPage, &p);
  EXPECT_EQ(s.code(), Code::kResourceExhausted);
  EXPECT_EQ(s.message(),
            "this rank's arena has no room for 20480 bytes: 49152 of 65536 "
            "bytes are in use (raise --arena_bytes of the agent)");
  EXPECT_FALSE(arena_->Allocate(UINT64_MAX, &p).ok());
  Allocate(4 * kPage);
}

TEST_F(ArenaTest, AfterDetachPeersWriteInVain) {
  std::byte* const p = Allocate(3 * kPage);
  uint64_t offset = 0;
  ASSERT_TRUE(arena_->Find(p + kPage, 100, &offset));
  std::strcpy(reinterpret_cast<char*>(p + kPage), "mine");
  ASSERT_TRUE(arena_->Detach(p + kPage, 100).ok());
  std::strcpy(reinterpret_cast<char*>(board_->arena(1) + offset), "late");
  EXPECT_STREQ(reinterpret_cast<char*>(p + kPage), "mine");
  uint64_t nowhere = 0;
  EXPECT_FALSE(arena_->Find(p, 64, &nowhere));
  arena_->Free(p);
  // Peers that have not finished with the tensor still find what they read.
  EXPECT_STREQ(reinterpret_cast<char*>(board_->arena(1) + offset), "late");
}

TEST_F(ArenaTest, TensorsOutliveTheBoard) {
  std::byte* const p = Allocate(kPage);
  board_.reset();
  std::strcpy(reinterpret_cast<char*>(p), "still here");
  EXPECT_STREQ(reinterpret_cast<char*>(p), "still here");
  arena_->Free(p);
}

TEST_F(ArenaTest, AForkedChildChangesOnlyItsOwn) {
  void* memory = nullptr;
  ASSERT_TRUE(AllocateMemory(arena_, 100, &memory).ok());
  auto* const text = static_cast<char*>(memory);
  std::strcpy(text, "parent");
  const pid_t child = fork();
  if (child == 0) {
    if (std::strcmp(text, "parent") != 0) _exit(1);
    std::strcpy(text, "child");
    if (!ReleaseMemory(memory).ok()) _exit(2);
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_STREQ(text, "parent");
  EXPECT_EQ(AllocatedInArenas(), kPage);
  EXPECT_TRUE(ReleaseMemory(memory).ok());
  EXPECT_EQ(AllocatedInArenas(), 0u);
  EXPECT_EQ(ReleaseMemory(memory).code(), Code::kInvalidArgument);
}

TEST_F(ArenaTest, WithoutArenaMemoryIsOrdinary) {
  BoardConfig config;
  config.size = config.local_size = 2;
  config.slots = 64;
  std::unique_ptr<Board> board;
  ASSERT_TRUE(Board::Create(config, &board).ok());
  std::shared_ptr<Arena> none;
  ASSERT_TRUE(Arena::Map(*board, 0, &none).ok());
  EXPECT_EQ(none, nullptr);
  void* memory = nullptr;
  ASSERT_TRUE(AllocateMemory(none, 5000, &memory).ok());
  EXPECT_EQ(static_cast<char*>(memory)[4999], 0);
  EXPECT_TRUE(ReleaseMemory(memory).ok());
  EXPECT_TRUE(ReleaseMemory(nullptr).ok());
}

}  // namespace
}  // namespace maypole
