// Ranks: the processes of a test's job, forked by one test program.
//
// Thread contract: the forking process has one thread.
#ifndef MAYPOLE_TESTS_PROPERTIES_PLAYER_RANKS_H_
#define MAYPOLE_TESTS_PROPERTIES_PLAYER_RANKS_H_

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "client/bootstrap/rank_options.h"

namespace maypole::properties {

// The options of `rank` in a job of `ranks`, placed as maypolerun does: node by
// node, with one agent (the path of its socket) per node.
RankOptions OptionsOf(int rank, int ranks,
                      const std::vector<std::string>& agents,
                      const std::string& job);
// The same with the given numbers of ranks on each node.
RankOptions OptionsOf(int rank, const std::vector<int>& local_sizes,
                      const std::vector<std::string>& agents,
                      const std::string& job);

// A child process that runs body() and ends with its result; it dies with its
// parent.
pid_t Fork(const std::function<int()>& body);

// A zeroed page-aligned T that forked processes share.
void* ShareBytes(size_t bytes);
template <typename T>
T* Share() {
  return static_cast<T*>(ShareBytes(sizeof(T)));
}
void UnshareBytes(void* p, size_t bytes);
template <typename T>
void Unshare(T* p) {
  UnshareBytes(p, sizeof(T));
}

int64_t NowNs();

}  // namespace maypole::properties

#endif  // MAYPOLE_TESTS_PROPERTIES_PLAYER_RANKS_H_
