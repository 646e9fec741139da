#include "common/system/event_loop.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// There with -fsanitize=vptr.
extern "C" void __ubsan_handle_dynamic_type_cache_miss() __attribute__((weak));

namespace maypole {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

EventLoop::Time In(int ms) { return steady_clock::now() + milliseconds(ms); }

struct Pair {
  Pair() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    ours = Fd(fds[0]);
    theirs = Fd(fds[1]);
  }
  void Write() { EXPECT_EQ(write(theirs.get(), "x", 1), 1); }

  Fd ours;
  Fd theirs;
};

void ReadOne(int fd) {
  char c;
  EXPECT_EQ(read(fd, &c, 1), 1);
}

// What the kernel watches for this process: the inode of each open file in its
// epolls, by descriptor number.
int WatchedInKernel(int number) {
  int count = 0;
  DIR* fds = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(fds)) {
    const std::string name = entry->d_name;
    char target[64] = {};
    if (readlink(("/proc/self/fd/" + name).c_str(), target,
                 sizeof(target) - 1) < 0 ||
        std::string(target) != "anon_inode:[eventpoll]") {
      continue;
    }
    std::ifstream info("/proc/self/fdinfo/" + name);
    for (std::string word; info >> word;) {
      int watched = -1;
      if (word == "tfd:" && info >> watched && watched == number) ++count;
    }
  }
  closedir(fds);
  return count;
}

class EventLoopTest : public ::testing::Test {
 protected:
  // Watches `fd`, notes `name` and reads one message when it is readable.
  void Note(Fd fd, char name, WatchedFd* out, Turn turn = Turn::kNormal) {
    ASSERT_TRUE(loop_
                    .Watch(std::move(fd),
                           {.readable =
                                [this, name, out] {
                                  called_ += name;
                                  ReadOne(out->fd());
                                },
                            .turn = turn},
                           out)
                    .ok());
  }
  void Round(int ms = 0) { ASSERT_TRUE(loop_.RunOnce(In(ms)).ok()); }

  EventLoop loop_;
  std::string called_;
};

TEST_F(EventLoopTest, CallsAsLongAsThereIsSomethingToRead) {
  Pair pair;
  WatchedFd watched;
  Note(std::move(pair.ours), 'a', &watched);
  Round();
  EXPECT_EQ(called_, "");
  pair.Write();
  pair.Write();
  Round(1000);
  EXPECT_EQ(called_, "a");
  Round(1000);
  EXPECT_EQ(called_, "aa");
  Round();
  EXPECT_EQ(called_, "aa");
}

TEST_F(EventLoopTest, CallsAtEndOfFile) {
  Pair pair;
  WatchedFd watched;
  ssize_t n = -1;
  ASSERT_TRUE(loop_
                  .Watch(std::move(pair.ours),
                         {.readable =
                              [&] {
                                char c;
                                n = read(watched.fd(), &c, 1);
                              }},
                         &watched)
                  .ok());
  pair.theirs.Reset();
  Round(1000);
  EXPECT_EQ(n, 0);
}

// The pitfall of epoll: while another process holds the open file, epoll still
// reports a descriptor that was only closed.
TEST_F(EventLoopTest, ADescriptorHandedAwayIsNotReportedAnyMore) {
  for (const bool release : {false, true}) {
    Pair pair;
    const Fd copy(dup(pair.ours.get()));  // as in another process
    const int number = pair.ours.get();
    WatchedFd watched;
    Note(std::move(pair.ours), 'a', &watched);
    EXPECT_EQ(WatchedInKernel(number), 1);
    if (release) {
      const Fd mine = watched.Release();
      EXPECT_EQ(mine.get(), number);
    } else {
      watched.Reset();
    }
    EXPECT_FALSE(watched.valid());
    EXPECT_EQ(watched.fd(), -1);
    EXPECT_EQ(WatchedInKernel(number), 0);
    pair.Write();
    Round(20);
    EXPECT_EQ(called_, "");
  }
}

TEST_F(EventLoopTest, AReleasedDescriptorIsOpenAndCanBeWatchedAgain) {
  Pair pair;
  WatchedFd watched;
  Note(std::move(pair.ours), 'a', &watched);
  Fd mine = watched.Release();
  pair.Write();
  Round();
  EXPECT_EQ(called_, "");
  Note(std::move(mine), 'b', &watched);
  Round(1000);
  EXPECT_EQ(called_, "b");
}

TEST_F(EventLoopTest, ARegistrationMayBeDestroyedInItsOwnCallback) {
  Pair pair;
  std::optional<WatchedFd> watched(std::in_place);
  const std::string text = "a string too long to be held in the object itself";
  ASSERT_TRUE(loop_
                  .Watch(std::move(pair.ours),
                         {.readable =
                              [&, text] {
                                watched.reset();
                                called_ += text;  // the captured values still
                                                  // exist
                              }},
                         &*watched)
                  .ok());
  pair.Write();
  Round(1000);
  EXPECT_EQ(called_, text);
  Round();
  EXPECT_EQ(called_, text);
  EXPECT_LE(send(pair.theirs.get(), "x", 1, MSG_NOSIGNAL), 0);  // it is closed
}

// The next descriptor gets the same number, and must not get the old one's
// event.
TEST_F(EventLoopTest, AnEventOfThisRoundIsDroppedWithItsRegistration) {
  Pair first, second, other;
  WatchedFd a, b, c;
  const int number = second.ours.get();
  ASSERT_TRUE(loop_
                  .Watch(std::move(first.ours),
                         {.readable =
                              [&] {
                                ReadOne(a.fd());
                                called_ += 'a';
                                b.Reset();
                                Note(Fd(dup(other.ours.get())), 'c', &c);
                              }},
                         &a)
                  .ok());
  Note(std::move(second.ours), 'b', &b);
  first.Write();
  second.Write();
  Round(1000);
  EXPECT_EQ(c.fd(), number);
  EXPECT_EQ(called_, "a");
  Round();
  EXPECT_EQ(called_, "a");
  other.Write();
  Round(1000);
  EXPECT_EQ(called_, "ac");
}

TEST_F(EventLoopTest, TurnsAndThenTheKernelsOrder) {
  Pair pairs[5];
  WatchedFd watched[5];
  Note(std::move(pairs[0].ours), 'l', &watched[0], Turn::kLast);
  Note(std::move(pairs[1].ours), 'a', &watched[1]);
  Note(std::move(pairs[2].ours), 'b', &watched[2]);
  Note(std::move(pairs[3].ours), 'c', &watched[3]);
  Note(std::move(pairs[4].ours), 'f', &watched[4], Turn::kFirst);
  Round();
  for (const int i : {0, 3, 1, 2, 4}) pairs[i].Write();
  Round(1000);
  EXPECT_EQ(called_, "fcabl");
}

TEST_F(EventLoopTest, MovedAssignedRegistrationLetsGoOfTheFirst) {
  Pair first, second;
  WatchedFd a, b;
  Note(std::move(first.ours), 'a', &a);
  Note(std::move(second.ours), 'b', &b);
  const int number = b.fd();
  a = std::move(b);
  EXPECT_EQ(a.fd(), number);
  EXPECT_EQ(b.fd(), -1);
  char c;
  EXPECT_EQ(read(first.theirs.get(), &c, 1), 0);  // closed
}

TEST_F(EventLoopTest, WritesAreCalledWhileTheyAreWanted) {
  Pair pair;
  WatchedFd watched;
  ASSERT_TRUE(loop_
                  .Watch(std::move(pair.ours),
                         {.writable =
                              [&] {
                                called_ += 'w';
                                watched.WantWrite(called_.size() < 2);
                              }},
                         &watched)
                  .ok());
  Round();
  EXPECT_EQ(called_, "");
  watched.WantWrite(true);
  Round(1000);
  Round(1000);
  Round();
  EXPECT_EQ(called_, "ww");
}

TEST_F(EventLoopTest, WhatIsNotWantedIsDroppedAndComesAgain) {
  Pair first, second;
  WatchedFd a, b;
  Note(std::move(second.ours), 'b', &b);
  ASSERT_TRUE(loop_
                  .Watch(std::move(first.ours),
                         {.readable =
                              [&] {
                                ReadOne(a.fd());
                                called_ += 'a';
                                b.WantRead(false);
                              },
                          .turn = Turn::kFirst},
                         &a)
                  .ok());
  first.Write();
  second.Write();
  Round(1000);
  Round(10);
  EXPECT_EQ(called_, "a");
  b.WantRead(true);
  Round(1000);
  EXPECT_EQ(called_, "ab");
}

TEST_F(EventLoopTest, FlagsOfADescriptorStay) {
  for (const int flag : {0, O_NONBLOCK}) {
    Pair pair;
    ASSERT_EQ(fcntl(pair.ours.get(), F_SETFL, flag), 0);
    const int before = fcntl(pair.ours.get(), F_GETFL);
    WatchedFd watched;
    Note(std::move(pair.ours), 'a', &watched);
    pair.Write();
    Round(1000);
    EXPECT_EQ(fcntl(watched.fd(), F_GETFL), before);
  }
}

TEST_F(EventLoopTest, ARegularFileIsAlwaysReady) {
  WatchedFd watched;
  ASSERT_TRUE(loop_
                  .Watch(Fd(memfd_create("file", MFD_CLOEXEC)),
                         {.readable = [&] { called_ += 'r'; },
                          .writable = [&] { called_ += 'w'; },
                          .want_write = true},
                         &watched)
                  .ok());
  Round(1000);
  EXPECT_EQ(called_, "rw");
}

TEST_F(EventLoopTest, WhatCannotBeWatchedIsAnError) {
  WatchedFd watched;
  const Status s = loop_.Watch(Fd(), {.readable = [] {}}, &watched);
  EXPECT_FALSE(s.ok());
  EXPECT_FALSE(watched.valid());
}

TEST_F(EventLoopTest, TimersAreCalledWhenDueTheEarliestFirst) {
  LoopTimer late(&loop_, [&] { called_ += 'l'; });
  LoopTimer early(&loop_, [&] { called_ += 'e'; });
  const EventLoop::Time when = In(20);
  late.Set(when);
  early.Set(when - milliseconds(10));
  EXPECT_TRUE(late.pending());
  while (called_.size() < 2) ASSERT_TRUE(loop_.RunOnce().ok());
  EXPECT_GE(steady_clock::now(), when);
  EXPECT_EQ(called_, "el");
  EXPECT_FALSE(late.pending());
}

TEST_F(EventLoopTest, ATimerSetAgainIsCalledOnce) {
  LoopTimer timer(&loop_, [&] { called_ += 't'; });
  timer.Set(In(0));
  const EventLoop::Time when = In(15);
  timer.Set(when);
  Round(5000);
  EXPECT_GE(steady_clock::now(), when);
  EXPECT_EQ(called_, "t");
  Round(5);
  EXPECT_EQ(called_, "t");
}

TEST_F(EventLoopTest, ACancelledTimerIsNotCalledThoughItWasDue) {
  std::optional<LoopTimer> second(std::in_place, &loop_,
                                  [&] { called_ += '2'; });
  LoopTimer third(&loop_, [&] { called_ += '3'; });
  LoopTimer first(&loop_, [&] {
    called_ += '1';
    second.reset();
    third.Cancel();
    first.Set(In(0));  // in the next round
  });
  first.Set(In(-30));
  second->Set(In(-20));
  third.Set(In(-10));
  Round(1000);
  EXPECT_EQ(called_, "1");
  EXPECT_FALSE(third.pending());
  EXPECT_TRUE(first.pending());
}

TEST_F(EventLoopTest, ADeadlineEndsAWait) {
  const EventLoop::Time when = In(20);
  ASSERT_TRUE(loop_.Wait(when).ok());
  EXPECT_GE(steady_clock::now(), when);
}

TEST_F(EventLoopTest, PostFromAnotherThreadWakesIt) {
  constexpr int kMany = 10000;
  int next = 0;
  std::thread other([&] {
    for (int i = 0; i < kMany; ++i) {
      loop_.Post([&next, i] {
        if (next == i) ++next;
      });
    }
  });
  while (next < kMany) ASSERT_TRUE(loop_.RunOnce().ok());
  other.join();
  EXPECT_EQ(next, kMany);
}

TEST_F(EventLoopTest, WhatIsPostedInACallbackRunsInTheNextRound) {
  loop_.Post([&] {
    called_ += '1';
    loop_.Post([&] { called_ += '2'; });
  });
  Round(1000);
  EXPECT_EQ(called_, "1");
  Round(1000);
  EXPECT_EQ(called_, "12");
}

TEST_F(EventLoopTest, SaysWhoHasBlockedIt) {
  std::string who;
  milliseconds time{0};
  loop_.OnBlocked([&](const std::string& callback, milliseconds t) {
    who = callback;
    time = t;
  });
  loop_.Post([] {});
  Round(1000);
  EXPECT_EQ(who, "");
  LoopTimer timer(&loop_,
                  [] { std::this_thread::sleep_for(kBlockedLimit * 2); });
  timer.Set(In(0));
  Round(1000);
  EXPECT_NE(who.find("SaysWhoHasBlockedIt"), std::string::npos) << who;
  EXPECT_GE(time, kBlockedLimit * 2);
}

TEST(EventLoop, WithoutDescriptorsItSaysSo) {
  if (&__ubsan_handle_dynamic_type_cache_miss != nullptr) {
    GTEST_SKIP() << "ubsan needs two descriptors to look at an exception";
  }
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {3, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  EventLoop loop;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(loop.Wait(In(0)).code(), Code::kResourceExhausted);
  WatchedFd watched;
  EXPECT_FALSE(loop.Watch(Fd(dup(0)), {}, &watched).ok());
  LoopTimer timer(&loop, [] {});
  timer.Set(In(0));
  loop.Post([] {});
  loop.Dispatch();
}

}  // namespace
}  // namespace maypole
