// Plays random programs of collectives on all ranks of a job and compares every
// result with a plain reference.
//
//   property_ranks --agents=/path/a[,/path/b] --ranks=4 --seed=7 --programs=200
//
// Ends with 0 if all was right; else the first line on stderr names rank, seed
// and operation, and the second is the command that plays it again. The agents
// (one a node) must run already: see daemons.py.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_split.h"
#include "client/client.h"
#include "tests/properties/player.h"
#include "tests/properties/ranks.h"
#include "tests/properties/spec.h"

ABSL_FLAG(std::vector<std::string>, agents, {}, "sockets, one a node");
ABSL_FLAG(int, ranks, 2, "of the job");
ABSL_FLAG(std::string, job, "properties", "the job's id");
ABSL_FLAG(uint64_t, seed, 1, "of the first program; then seed + 1, ...");
ABSL_FLAG(int, programs, 100, "how many at most");
ABSL_FLAG(double, seconds, 1e9, "how long at most");
ABSL_FLAG(uint32_t, chunk_bytes, 512 * 1024, "as the agents' flag");
ABSL_FLAG(uint64_t, most_bytes, 256 * 1024, "of a tensor");
ABSL_FLAG(int, most_operations, 12, "of a program");

namespace maypole::properties {
namespace {

constexpr int kPatienceMs = 20000;

struct Shared {
  std::atomic<int> stop_at;  // programs to play; rank 0 says so, 0: not yet
  std::atomic<int64_t> operations;
  std::atomic<int> programs;
};

World ReadWorld() {
  World w;
  w.ranks = absl::GetFlag(FLAGS_ranks);
  w.nodes = static_cast<int>(absl::GetFlag(FLAGS_agents).size());
  w.chunk_bytes = absl::GetFlag(FLAGS_chunk_bytes);
  w.most_bytes = absl::GetFlag(FLAGS_most_bytes);
  w.most_operations = absl::GetFlag(FLAGS_most_operations);
  return w;
}

int Complain(int rank, uint64_t seed, int number, const std::string& what) {
  std::fprintf(
      stderr,
      "WRONG: rank %d, program seed %lu (number %d): %s\n"
      "again: property_ranks --agents=... --ranks=%d --seed=%lu --programs=%d "
      "--chunk_bytes=%u --most_bytes=%lu --most_operations=%d\n",
      rank, seed, number, what.c_str(), absl::GetFlag(FLAGS_ranks),
      absl::GetFlag(FLAGS_seed), number + 1, absl::GetFlag(FLAGS_chunk_bytes),
      absl::GetFlag(FLAGS_most_bytes), absl::GetFlag(FLAGS_most_operations));
  return 1;
}

// A rank finishes a program only when all have submitted all of it, so none is
// more than one ahead: what rank 0 decides now, all know before they finish the
// next.
bool Over(int rank, int number, int64_t deadline, Shared* shared) {
  if (rank == 0 && shared->stop_at == 0 && NowNs() > deadline) {
    shared->stop_at = number + 2;
  }
  const int stop = shared->stop_at;
  return number >= absl::GetFlag(FLAGS_programs) ||
         (stop > 0 && number >= stop);
}

int RunRank(int rank, const World& world, Shared* shared) {
  std::unique_ptr<Client> client;
  const Options options = OptionsOf(
      rank, world.ranks, absl::GetFlag(FLAGS_agents), absl::GetFlag(FLAGS_job));
  if (Status s = Client::Join(options, &client); !s.ok()) {
    return Complain(rank, 0, 0, "cannot join: " + std::string(s.message()));
  }
  const int64_t deadline =
      NowNs() + static_cast<int64_t>(absl::GetFlag(FLAGS_seconds) * 1e9);
  Memory memory(client.get());
  Player player(client.get(), rank, world, &memory, kPatienceMs);
  for (int n = 0; !Over(rank, n, deadline, shared); ++n) {
    const uint64_t seed = absl::GetFlag(FLAGS_seed) + static_cast<uint64_t>(n);
    const std::string wrong = player.Play(MakeProgram(seed, world));
    if (!wrong.empty()) return Complain(rank, seed, n, wrong);
    if (player.failed() != nullptr) {
      return Complain(rank, seed, n,
                      player.failed()->spec().Text() + ": " +
                          player.failed()->status().message());
    }
    shared->operations += static_cast<int64_t>(player.attempts().size());
    if (rank == 0) shared->programs = n + 1;
  }
  client->Leave();
  return 0;
}

int Main() {
  const World world = ReadWorld();
  if (world.nodes < 1 || world.ranks < world.nodes) {
    std::fprintf(stderr, "--agents: one a node, not more than --ranks\n");
    return 2;
  }
  auto* shared = Share<Shared>();
  std::vector<pid_t> pids;
  for (int rank = 0; rank < world.ranks; ++rank) {
    pids.push_back(Fork([&] { return RunRank(rank, world, shared); }));
  }
  int result = 0;
  for (int i = 0; i < world.ranks; ++i) {
    int status = 0;
    if (waitpid(-1, &status, 0) < 0) break;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    // The first complaint is the one to read; others follow from it.
    if (result == 0 && WIFSIGNALED(status)) {
      std::fprintf(stderr, "WRONG: a rank was ended by signal %d\n",
                   WTERMSIG(status));
    }
    result = 1;
    for (const pid_t pid : pids) kill(pid, SIGKILL);
  }
  std::printf("programs=%d operations=%ld ranks=%d nodes=%d\n",
              shared->programs.load(), shared->operations.load(), world.ranks,
              world.nodes);
  return result;
}

}  // namespace
}  // namespace maypole::properties

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return maypole::properties::Main();
}
