// What compat.c and start.c do, in a program that is linked like the wheel's.
#include <errno.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <stdexcept>
#include <string>

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

int constructed = 0;
struct Constructed {
  Constructed() { ++constructed; }
} global;

TEST(PortableTest, ConstructorsRunOnce) { EXPECT_EQ(constructed, 1); }

TEST(PortableTest, HasTheEnvironment) {
  ASSERT_NE(environ, nullptr);
  EXPECT_NE(environ[0], nullptr);
  EXPECT_NE(getenv("PATH"), nullptr);
}

TEST(PortableTest, ExceptionsAreCaught) {
  EXPECT_THROW(throw std::runtime_error("x"), std::runtime_error);
  EXPECT_THROW((void)std::filesystem::file_size("/nonexistent"),
               std::filesystem::filesystem_error);
}

TEST(PortableTest, WaitsLastAsLongAsTheyShould) {
  std::mutex mutex;
  std::condition_variable condition;
  std::unique_lock lock(mutex);
  const auto begin = Clock::now();
  EXPECT_FALSE(
      condition.wait_for(lock, milliseconds(1200), [] { return false; }));
  EXPECT_GE(Clock::now() - begin, milliseconds(1200));
}

TEST(PortableTest, WaitsForALockLastAsLongAsTheyShould) {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  ASSERT_EQ(pthread_mutex_lock(&mutex), 0);
  timespec end;
  clock_gettime(CLOCK_MONOTONIC, &end);
  end.tv_sec += 1;
  const auto begin = Clock::now();
  EXPECT_EQ(pthread_mutex_clocklock(&mutex, CLOCK_MONOTONIC, &end), ETIMEDOUT);
  EXPECT_GE(Clock::now() - begin, milliseconds(990));
  pthread_mutex_unlock(&mutex);
}

TEST(PortableTest, ReadsTheStatusOfFiles) {
  struct stat by_path, by_fd, of_link;
  ASSERT_EQ(stat("/proc/self/exe", &by_path), 0);
  ASSERT_EQ(lstat("/proc/self/exe", &of_link), 0);
  EXPECT_TRUE(S_ISREG(by_path.st_mode));
  EXPECT_TRUE(S_ISLNK(of_link.st_mode));
  EXPECT_EQ(static_cast<uintmax_t>(by_path.st_size),
            std::filesystem::file_size("/proc/self/exe"));
  ASSERT_EQ(fstat(STDIN_FILENO, &by_fd), 0);
  EXPECT_EQ(stat("/nonexistent", &by_path), -1);
}

}  // namespace
