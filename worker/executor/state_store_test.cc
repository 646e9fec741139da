#include "worker/executor/state_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "common/limits.h"

namespace maypole::worker {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

Fd Memory(off_t bytes, int seals = kSeals) {
  Fd fd(memfd_create("state", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), bytes), 0);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

TEST(StateStoreTest, KeepsFindsReplacesAndDrops) {
  StateStore store(1000);
  EXPECT_TRUE(store.empty());
  EXPECT_EQ(store.Find("a"), nullptr);
  Fd first = Memory(400);
  const int number = first.get();
  ASSERT_TRUE(store.Keep("a", std::move(first)).ok());
  ASSERT_NE(store.Find("a"), nullptr);
  EXPECT_EQ(store.Find("a")->get(), number);
  EXPECT_EQ(store.bytes(), 400u);

  ASSERT_TRUE(store.Keep("a", Memory(700)).ok());  // 400 + 700 would not fit
  EXPECT_EQ(store.bytes(), 700u);
  EXPECT_EQ(fcntl(number, F_GETFD), -1);  // the old one is closed

  ASSERT_TRUE(store.Keep("b", Memory(300)).ok());
  EXPECT_EQ(store.bytes(), 1000u);
  store.Drop("a");
  store.Drop("never there");
  EXPECT_EQ(store.bytes(), 300u);
  EXPECT_EQ(store.Find("a"), nullptr);
  store.Drop("b");
  EXPECT_TRUE(store.empty());
  EXPECT_EQ(store.bytes(), 0u);
}

TEST(StateStoreTest, RefusesMoreThanItsLimitAndKeepsWhatItHas) {
  StateStore store(1000);
  ASSERT_TRUE(store.Keep("a", Memory(600)).ok());
  ASSERT_TRUE(store.Keep("b", Memory(300)).ok());
  const Status s = store.Keep("b", Memory(401));
  EXPECT_EQ(s.code(), Code::kResourceExhausted);
  EXPECT_NE(s.message().find("state 'b' has 401 bytes; with the job's other "
                             "states (600)"),
            std::string::npos)
      << s.message();
  EXPECT_NE(s.message().find("--state_bytes"), std::string::npos);
  EXPECT_EQ(store.bytes(), 900u);
  EXPECT_TRUE(store.Keep("b", Memory(400)).ok());
}

TEST(StateStoreTest, RefusesMoreNamesThanItsLimit) {
  StateStore store(1000);
  for (size_t i = 0; i < kMaxKeptStates; ++i) {
    ASSERT_TRUE(store.Keep("state" + std::to_string(i), Memory(1)).ok());
  }
  EXPECT_EQ(store.Keep("another", Memory(1)).code(), Code::kResourceExhausted);
  EXPECT_TRUE(store.Keep("state0", Memory(2)).ok());
}

TEST(StateStoreTest, RefusesWhatCouldHarmItsReaders) {
  StateStore store(1 << 20);
  const auto refused = [&store](Fd fd) {
    return store.Keep("a", std::move(fd)).code() == Code::kInvalidArgument;
  };
  EXPECT_TRUE(refused(Fd()));
  EXPECT_TRUE(refused(Memory(8, F_SEAL_SHRINK)));  // could grow over the limit
  EXPECT_TRUE(refused(Memory(8, F_SEAL_GROW)));    // readers could get SIGBUS
  EXPECT_TRUE(refused(Fd(open("/dev/null", O_RDONLY | O_CLOEXEC))));
  int pipe_ends[2];
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  const Fd writer(pipe_ends[1]);
  EXPECT_TRUE(refused(Fd(pipe_ends[0])));
  for (const std::string& name :
       {std::string(), std::string("a/b"), std::string(64, 'n')}) {
    EXPECT_EQ(store.Keep(name, Memory(8)).code(), Code::kInvalidArgument);
  }
  EXPECT_TRUE(store.empty());
}

}  // namespace
}  // namespace maypole::worker
