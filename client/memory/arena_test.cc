#include "client/memory/arena.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>

namespace maypole {
namespace {

// Runs with the machine's page size and with a larger one.
class ArenaTest : public testing::TestWithParam<uint32_t> {
 protected:
  ArenaTest() {
    BoardConfig config;
    config.page_bytes = GetParam();
    config.size = config.local_size = 2;
    config.global_rank[1] = 1;
    config.slots = 64;
    config.arena_bytes = 16 * page_;
    EXPECT_TRUE(Board::Create(config, &board_).ok());
    EXPECT_TRUE(Arena::Map(*board_, 1, &arena_).ok());
  }

  std::byte* Allocate(uint64_t bytes) {
    std::byte* p = nullptr;
    const Status s = arena_->Allocate(bytes, &p);
    EXPECT_TRUE(s.ok()) << s.message();
    return p;
  }
  // The bytes that the board's memory actually occupies.
  uint64_t Blocks() {
    struct stat st;
    EXPECT_EQ(fstat(board_->fd(), &st), 0);
    return static_cast<uint64_t>(st.st_blocks) * 512;
  }

  const uint64_t page_ = GetParam();
  std::unique_ptr<Board> board_;
  std::shared_ptr<Arena> arena_;
};

INSTANTIATE_TEST_SUITE_P(
    Pages, ArenaTest,
    testing::Values(static_cast<uint32_t>(PageBytes()),
                    4 * static_cast<uint32_t>(PageBytes()),
                    16 * static_cast<uint32_t>(PageBytes())));

TEST_P(ArenaTest, PeersSeeWhatIsWrittenAtTheOffsetThatFindTells) {
  std::byte* const first = Allocate(100);
  std::byte* const second = Allocate(2 * page_ + 1);
  uint64_t offset = 0;
  ASSERT_TRUE(arena_->Find(second + 128, 300, &offset));
  std::strcpy(reinterpret_cast<char*>(second + 128), "hello");
  EXPECT_STREQ(reinterpret_cast<char*>(board_->arena(1) + offset), "hello");
  std::strcpy(reinterpret_cast<char*>(board_->arena(1) + offset), "answer");
  EXPECT_STREQ(reinterpret_cast<char*>(second + 128), "answer");
  EXPECT_NE(first, second);
  EXPECT_EQ(arena_->allocated(), 4 * page_);
}

TEST_P(ArenaTest, FindsOnlyAlignedRangesInside) {
  std::byte* const p = Allocate(16 * page_);
  uint64_t offset = 0;
  EXPECT_TRUE(arena_->Find(p, 16 * page_, &offset));
  EXPECT_FALSE(arena_->Find(p, 16 * page_ + 1, &offset));
  EXPECT_FALSE(arena_->Find(p + 4, 8, &offset));
  EXPECT_FALSE(arena_->Find(p - 64, 128, &offset));
  EXPECT_FALSE(arena_->Find(p + 16 * page_, 64, &offset));
  std::byte elsewhere[64];
  EXPECT_FALSE(arena_->Find(elsewhere, 64, &offset));
}

TEST_P(ArenaTest, MemoryIsTakenWhenAllocatedAndGivenBackWhenFreed) {
  const uint64_t before = Blocks();
  std::byte* const p = Allocate(10 * page_);
  EXPECT_EQ(Blocks(), before + 10 * page_);
  std::memset(p, 1, 10 * page_);
  arena_->Free(p);
  EXPECT_EQ(Blocks(), before);
  EXPECT_EQ(arena_->allocated(), 0u);
  std::byte* const again = Allocate(10 * page_);
  EXPECT_EQ(again[5000], std::byte{0});
}

// A profiler's timer sends signals, and each interrupts a reservation of pages.
TEST(ArenaSignalTest, SignalsDoNotEndAnAllocation) {
  BoardConfig config;
  config.slots = 64;
  config.arena_bytes = 256 << 20;  // takes far longer than 5 ms
  std::unique_ptr<Board> board;
  std::shared_ptr<Arena> arena;
  ASSERT_TRUE(Board::Create(config, &board).ok());
  ASSERT_TRUE(Arena::Map(*board, 0, &arena).ok());
  struct sigaction action {};
  struct sigaction before;
  action.sa_handler = [](int) {};
  ASSERT_EQ(sigaction(SIGALRM, &action, &before), 0);
  const itimerval often{{0, 5000}, {0, 5000}}, never{};
  setitimer(ITIMER_REAL, &often, nullptr);
  std::byte* memory = nullptr;
  const Status s = arena->Allocate(config.arena_bytes, &memory);
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &before, nullptr);
  EXPECT_TRUE(s.ok()) << s.message();
}

TEST_P(ArenaTest, HolesGrowTogetherAgain) {
  std::byte* const a = Allocate(4 * page_);
  std::byte* const b = Allocate(4 * page_);
  std::byte* const c = Allocate(4 * page_);
  arena_->Free(a);
  arena_->Free(c);
  std::byte* p = nullptr;
  EXPECT_FALSE(arena_->Allocate(9 * page_, &p).ok());
  arena_->Free(b);
  EXPECT_EQ(Allocate(16 * page_), a);
}

TEST_P(ArenaTest, AFullArenaIsAnErrorThatSaysWhatToDo) {
  Allocate(12 * page_);
  std::byte* p = nullptr;
  const Status s = arena_->Allocate(5 * page_, &p);
  EXPECT_EQ(s.code(), Code::kResourceExhausted);
  EXPECT_EQ(s.message(),
            "this rank's arena has no room for " + std::to_string(5 * page_) +
                " bytes: " + std::to_string(12 * page_) + " of " +
                std::to_string(16 * page_) +
                " bytes are in use (raise --arena_bytes of the agent)");
  EXPECT_FALSE(arena_->Allocate(UINT64_MAX, &p).ok());
  Allocate(4 * page_);
}

TEST_P(ArenaTest, AfterDetachPeersWriteInVain) {
  std::byte* const p = Allocate(3 * page_);
  uint64_t offset = 0;
  ASSERT_TRUE(arena_->Find(p + page_, 100, &offset));
  std::strcpy(reinterpret_cast<char*>(p + page_), "mine");
  ASSERT_TRUE(arena_->Detach(p + page_, 100).ok());
  std::strcpy(reinterpret_cast<char*>(board_->arena(1) + offset), "late");
  EXPECT_STREQ(reinterpret_cast<char*>(p + page_), "mine");
  uint64_t nowhere = 0;
  EXPECT_FALSE(arena_->Find(p, 64, &nowhere));
  arena_->Free(p);
  // Peers that still read the tensor see its old contents.
  EXPECT_STREQ(reinterpret_cast<char*>(board_->arena(1) + offset), "late");
}

TEST_P(ArenaTest, TensorsOutliveTheBoard) {
  std::byte* const p = Allocate(page_);
  board_.reset();
  std::strcpy(reinterpret_cast<char*>(p), "still here");
  EXPECT_STREQ(reinterpret_cast<char*>(p), "still here");
  arena_->Free(p);
}

TEST_P(ArenaTest, AForkedChildChangesOnlyItsOwn) {
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
  EXPECT_EQ(AllocatedInArenas(), page_);
  EXPECT_TRUE(ReleaseMemory(memory).ok());
  EXPECT_EQ(AllocatedInArenas(), 0u);
  EXPECT_EQ(ReleaseMemory(memory).code(), Code::kInvalidArgument);
}

// Runs `child` in a forked process; returns its exit status.
int InChild(const std::function<int()>& child) {
  const pid_t pid = fork();
  if (pid == 0) _exit(child());
  int status = -1;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_P(ArenaTest, AGrandchildSeesWhatItsParentHasWritten) {
  void* memory = nullptr;
  ASSERT_TRUE(AllocateMemory(arena_, 100, &memory).ok());
  auto* const text = static_cast<char*>(memory);
  std::strcpy(text, "rank");
  EXPECT_EQ(InChild([&] {
              std::strcpy(text, "child");
              return InChild([&] { return std::strcmp(text, "child"); });
            }),
            0);
  EXPECT_STREQ(text, "rank");
  EXPECT_TRUE(ReleaseMemory(memory).ok());
}

TEST_P(ArenaTest, AForkedChildSeesTheCopiesOfAnEpochThatIsOver) {
  void* memory = nullptr;
  ASSERT_TRUE(AllocateMemory(arena_, 4 * page_, &memory).ok());
  auto* const begin = static_cast<std::byte*>(memory);
  const auto text = [&](uint64_t page) {
    return reinterpret_cast<char*>(begin + page * page_);
  };
  uint64_t offset = 0;
  ASSERT_TRUE(arena_->Find(begin, 100, &offset));
  for (uint64_t page = 0; page < 4; ++page) std::strcpy(text(page), "mine");
  ASSERT_TRUE(arena_->Detach(begin + page_, 2 * page_).ok());
  ASSERT_TRUE(arena_->Detach(begin + page_, 100).ok());  // once more a part
  for (uint64_t page = 0; page < 4; ++page) {
    std::strcpy(
        reinterpret_cast<char*>(board_->arena(1) + offset + page * page_),
        "late");
  }
  EXPECT_EQ(InChild([&] {
              if (std::strcmp(text(0), "late") != 0) return 1;
              if (std::strcmp(text(1), "mine") != 0) return 2;
              if (std::strcmp(text(2), "mine") != 0) return 3;
              if (std::strcmp(text(3), "late") != 0) return 4;
              std::strcpy(text(3), "child");
              return 0;
            }),
            0);
  EXPECT_STREQ(text(3), "late");
  EXPECT_TRUE(ReleaseMemory(memory).ok());
}

TEST_P(ArenaTest, WithoutArenaMemoryIsOrdinary) {
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
