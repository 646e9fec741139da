#include "tests/properties/player/ranks.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "tests/properties/spec/spec.h"

namespace maypole::properties {

RankOptions OptionsOf(int rank, int ranks,
                      const std::vector<std::string>& agents,
                      const std::string& job) {
  World world;
  world.ranks = ranks;
  world.nodes = static_cast<int>(agents.size());
  return OptionsOf(rank, world.LocalSizes(), agents, job);
}

RankOptions OptionsOf(int rank, const std::vector<int>& local_sizes,
                      const std::vector<std::string>& agents,
                      const std::string& job) {
  RankOptions o;
  o.rank = rank;
  o.cross_size = static_cast<int>(local_sizes.size());
  o.size = 0;
  for (int node = 0; node < o.cross_size; ++node) {
    const int here = local_sizes[static_cast<size_t>(node)];
    if (rank >= o.size && rank < o.size + here) {
      o.cross_rank = node;
      o.local_rank = rank - o.size;
      o.local_size = here;
    }
    o.size += here;
  }
  o.agent = agents[static_cast<size_t>(o.cross_rank)];
  o.job = job;
  o.token = "properties";
  o.start_timeout_seconds = 60;
  if (const char* spin = std::getenv("MAYPOLE_SPIN_US"); spin != nullptr) {
    o.spin_microseconds = std::atoi(spin);
  }
  return o;
}

pid_t Fork(const std::function<int()>& body) {
  const pid_t parent = getpid();
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  const int status = body();
  std::fflush(nullptr);
  _exit(status);
}

void* ShareBytes(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    std::perror("mmap");
    std::exit(2);
  }
  return p;
}

void UnshareBytes(void* p, size_t bytes) { munmap(p, bytes); }

int64_t NowNs() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * int64_t{1000000000} + t.tv_nsec;
}

}  // namespace maypole::properties
