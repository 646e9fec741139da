#include "common/program/process.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>

#include <exception>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "common/system/memory.h"

namespace maypole {
namespace {

// Sanitizers need address space themselves.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void StartAThreadThatDoesNotFit() {
  ExplainTermination("daemon");
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, size_t{2} << 30);
  pthread_setattr_default_np(&attributes);
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t most = pages * PageBytes() + (1 << 30);
  const rlimit limit{most, most};
  setrlimit(RLIMIT_AS, &limit);
  // As if no code caught the exception: googletest would catch it.
  try {
    std::thread([] {}).join();
  } catch (...) {
    std::terminate();
  }
}

TEST(ExplainTerminationDeathTest, AThreadThatCannotBeStartedNamesTheLimit) {
  EXPECT_DEATH(StartAThreadThatDoesNotFit(),
               "daemon: cannot start a thread: Resource temporarily "
               "unavailable: the limit of this process's address space is "
               "[0-9]+ bytes \\(ulimit -v\\)");
}
#endif

void Throw() {
  ExplainTermination("daemon");
  try {
    throw std::runtime_error("no reason");
  } catch (...) {
    std::terminate();
  }
}

TEST(ExplainTerminationDeathTest, OtherExceptionsAreToldToo) {
  EXPECT_DEATH(Throw(), "daemon: ended by an exception: no reason");
}

}  // namespace
}  // namespace maypole
