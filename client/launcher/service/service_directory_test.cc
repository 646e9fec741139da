#include "client/launcher/service/service_directory.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "client/bootstrap/bootstrap_directory.h"
#include "common/system/fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::launcher {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ServiceDirectory : public ::testing::Test {
 protected:
  ServiceDirectory() {
    std::string pattern = ::testing::TempDir() + "/serviceXXXXXX";
    base_ = mkdtemp(pattern.data());
    prefix_ = base_ + "/maypole-" + std::to_string(geteuid()) + "-";
  }
  ~ServiceDirectory() override { fs::remove_all(base_); }

  // Creates and locks the directory as a service does; returns the lock.
  Fd Make(const std::string& directory) {
    fs::create_directory(directory);
    for (const char* name : {"secret", "log"}) {
      std::ofstream(directory + "/" + name) << "text";
    }
    Fd lock;
    EXPECT_TRUE(TryLock(directory, &lock).ok());
    EXPECT_TRUE(lock.valid());
    return lock;
  }

  static std::set<std::string> In(const std::string& directory) {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(directory)) {
      names.insert(entry.path().filename());
    }
    return names;
  }

  std::string base_, prefix_;
};

TEST_F(ServiceDirectory, IsRemoved) {
  const Fd lock = Make(prefix_ + "a");
  RemoveServiceDirectory(prefix_ + "a", lock.get());
  EXPECT_THAT(In(base_), IsEmpty());
}

TEST_F(ServiceDirectory, OfTheNextServiceIsLeftAlone) {
  const Fd first = Make(prefix_ + "a");
  RemoveServiceDirectory(prefix_ + "a", first.get());
  const Fd second = Make(prefix_ + "a");
  RemoveServiceDirectory(prefix_ + "a", first.get());
  EmptyServiceDirectory(prefix_ + "a", first.get());
  EXPECT_THAT(In(prefix_ + "a"), ElementsAre("lock", "log", "secret"));
}

TEST_F(ServiceDirectory, WhoHasOpenedTheLockBeforeDoesNotGetTheNewOne) {
  Fd first = Make(prefix_ + "a");
  const Fd early(open((prefix_ + "a/lock").c_str(), O_RDWR | O_CLOEXEC));
  RemoveServiceDirectory(prefix_ + "a", first.get());
  first.Reset();
  const Fd second = Make(prefix_ + "a");
  ASSERT_EQ(flock(early.get(), LOCK_EX | LOCK_NB), 0);
  RemoveServiceDirectory(prefix_ + "a", early.get());
  EXPECT_THAT(In(prefix_ + "a"), ElementsAre("lock", "log", "secret"));
}

TEST_F(ServiceDirectory, EmptiedItStillKeepsOthersOut) {
  const Fd lock = Make(prefix_ + "a");
  EmptyServiceDirectory(prefix_ + "a", lock.get());
  EXPECT_THAT(In(prefix_ + "a"), ElementsAre("lock"));
  Fd other;
  EXPECT_TRUE(TryLock(prefix_ + "a", &other).ok());
  EXPECT_FALSE(other.valid());
}

TEST_F(ServiceDirectory, WhatKilledServicesLeaveIsSwept) {
  Make(prefix_ + "dead");
  const Fd lives = Make(prefix_ + "lives");
  const Fd own = Make(prefix_ + "own");
  fs::create_directory(prefix_ + "nolock");
  fs::create_directory(prefix_ + "half.gone.1");
  std::ofstream(prefix_ + "half.gone.1/secret") << "text";
  fs::create_directory(base_ + "/other");
  SweepBeside(prefix_ + "own");
  const std::string name = fs::path(prefix_).filename();
  EXPECT_THAT(In(base_), ElementsAre(name + "lives", name + "nolock",
                                     name + "own", "other"));
  EXPECT_THAT(In(prefix_ + "lives"), ElementsAre("lock", "log", "secret"));
}

}  // namespace
}  // namespace maypole::launcher
