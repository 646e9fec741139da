#include "tests/properties/ranks.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>

namespace maypole::properties {

Options OptionsOf(int rank, int ranks, const std::vector<std::string>& agents,
                  const std::string& job) {
  const int nodes = static_cast<int>(agents.size());
  Options o;
  o.rank = rank;
  o.size = ranks;
  o.cross_size = nodes;
  // The first ranks % nodes nodes have one rank more.
  int first = 0;
  for (int node = 0; node < nodes; ++node) {
    const int here = ranks / nodes + (node < ranks % nodes ? 1 : 0);
    if (rank >= first && rank < first + here) {
      o.cross_rank = node;
      o.local_rank = rank - first;
      o.local_size = here;
    }
    first += here;
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
