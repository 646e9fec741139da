// Plays random programs of collectives on all ranks of a job and compares every
// result with a plain reference.
//
//   property_ranks --agents=/path/a[,/path/b] --layout=2,2 --seed=7
//
// The job stays up and plays one program after the other; now and then all
// ranks leave and join again (an epoch). If all results were right, prints what
// was covered (see coverage.h) and ends with 0. Otherwise a line on stderr
// names rank, seed and operation, and a second line the first seed of the epoch
// and the number of programs since, which replay the failure;
// properties_test.py turns the second line into a command. The agents (one per
// node) must run already: see daemons.py.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/numbers.h"
#include "client/api/client.h"
#include "tests/properties/player/player.h"
#include "tests/properties/player/ranks.h"
#include "tests/properties/spec/spec.h"

ABSL_FLAG(std::vector<std::string>, agents, {},
          "sockets, one a node; none: one rank alone, in its process");
ABSL_FLAG(std::vector<std::string>, layout, {"2"}, "ranks of each node");
ABSL_FLAG(std::string, job, "properties", "the job's id");
ABSL_FLAG(uint64_t, seed, 1, "of the first program; then seed + 1, ...");
ABSL_FLAG(int, programs, 100, "how many at most");
ABSL_FLAG(int, epoch_programs, 64, "after how many the ranks join anew");
ABSL_FLAG(double, seconds, 1e9, "how long, once --least have been played");
ABSL_FLAG(int, least, 0, "how many at least, however slow the machine");
ABSL_FLAG(uint32_t, chunk_bytes, 512 * 1024, "as the agents' flag");
ABSL_FLAG(uint64_t, most_bytes, 256 * 1024, "of a tensor");
ABSL_FLAG(int, most_operations, 12, "of a program");
ABSL_FLAG(bool, sets, true, "process sets");
ABSL_FLAG(bool, joins, true, "joins");
ABSL_FLAG(bool, groups, true, "grouped operations");
ABSL_FLAG(bool, cuda, false,
          "tensors that would be in the arena are on CUDA device 0");

namespace maypole::properties {
namespace {

constexpr int kPatienceMs = 20000;

struct Shared {
  std::atomic<int> stop_at;  // programs to play; rank 0 says so, 0: not yet
  Witness witness;
};

std::vector<std::string> Agents() {
  auto agents = absl::GetFlag(FLAGS_agents);
  return agents.empty() ? std::vector<std::string>{""} : agents;
}

World ReadWorld() {
  World w;
  w.ranks = 0;
  for (const std::string& text : absl::GetFlag(FLAGS_layout)) {
    int here = 0;
    if (!absl::SimpleAtoi(text, &here) || here < 1) return World{.ranks = 0};
    w.local_sizes.push_back(here);
    w.ranks += here;
  }
  w.nodes = static_cast<int>(w.local_sizes.size());
  w.chunk_bytes = absl::GetFlag(FLAGS_chunk_bytes);
  w.most_bytes = absl::GetFlag(FLAGS_most_bytes);
  w.most_operations = absl::GetFlag(FLAGS_most_operations);
  w.set_changes = absl::GetFlag(FLAGS_sets);
  if (w.set_changes) w.sets = UsualSets(w);
  w.joins = absl::GetFlag(FLAGS_joins);
  w.groups = absl::GetFlag(FLAGS_groups);
  return w;
}

// One rank's way through all programs.
class RankRun {
 public:
  RankRun(int rank, const World& world, Shared* shared)
      : rank_(rank),
        world_(world),
        shared_(shared),
        options_(OptionsOf(rank, world.local_sizes, Agents(),
                           absl::GetFlag(FLAGS_job))),
        deadline_(NowNs() +
                  static_cast<int64_t>(absl::GetFlag(FLAGS_seconds) * 1e9)) {}

  // The process's exit status.
  int Run() {
    if (absl::GetFlag(FLAGS_cuda)) gpu_ = std::make_unique<GpuMemory>();
    while (!Over()) {
      first_ = number_;
      const std::string wrong = PlayEpoch();
      if (!wrong.empty()) return Complain(wrong);
    }
    return 0;
  }

 private:
  uint64_t SeedOf(int number) const {
    return absl::GetFlag(FLAGS_seed) + static_cast<uint64_t>(number);
  }

  // A rank finishes a program only when all have submitted all of it, so none
  // is more than one ahead: what rank 0 decides now, all know before they
  // finish the next.
  bool Over() {
    if (rank_ == 0 && shared_->stop_at == 0 && NowNs() > deadline_ &&
        number_ >= absl::GetFlag(FLAGS_least)) {
      shared_->stop_at = number_ + 2;
    }
    const int stop = shared_->stop_at;
    return number_ >= absl::GetFlag(FLAGS_programs) ||
           (stop > 0 && number_ >= stop);
  }

  std::string PlayEpoch() {
    std::unique_ptr<Client> client;
    if (Status s = Client::Join(options_, &client); !s.ok()) {
      return "cannot join the job: " + s.message();
    }
    Memory memory(client.get(), gpu_.get());
    Player player(client.get(), rank_, world_, &memory, kPatienceMs,
                  &shared_->witness);
    std::string wrong = player.MakeSets();
    const int end = number_ + absl::GetFlag(FLAGS_epoch_programs);
    for (; wrong.empty() && number_ < end && !Over(); ++number_) {
      wrong = PlayProgram(&player);
      if (!wrong.empty()) return wrong;
    }
    if (wrong.empty() && (client->pending() > 0 || client->handles() > 0)) {
      wrong = "after its programs the client has " +
              std::to_string(client->pending()) + " operations pending and " +
              std::to_string(client->handles()) + " handles";
    }
    client->Leave();
    if (rank_ == 0) shared_->witness.coverage.Count(Event::kEpochs);
    return wrong;
  }

  std::string PlayProgram(Player* player) {
    const Program program = MakeProgram(SeedOf(number_), world_);
    const std::string wrong = player->Play(program);
    if (!wrong.empty()) return wrong;
    if (player->failed() != nullptr) {
      return player->failed()->spec().Text() + ": " +
             player->failed()->status().message();
    }
    if (rank_ == 0) shared_->witness.coverage.Count(Event::kPrograms);
    return "";
  }

  int Complain(const std::string& what) const {
    std::fprintf(stderr,
                 "WRONG: rank %d, program seed %lu (number %d): %s\n"
                 "again: seed=%lu programs=%d\n",
                 rank_, SeedOf(number_), number_, what.c_str(), SeedOf(first_),
                 number_ - first_ + 1);
    return 1;
  }

  const int rank_;
  const World& world_;
  Shared* const shared_;
  const RankOptions options_;
  const int64_t deadline_;
  std::unique_ptr<const GpuMemory> gpu_;  // null: none
  int number_ = 0;                        // of the program
  int first_ = 0;                         // of the epoch
};

int Main() {
  const World world = ReadWorld();
  if (world.ranks < 1 || world.local_sizes.size() != Agents().size()) {
    std::fprintf(stderr,
                 "--layout: ranks of each node; --agents: one a node\n");
    return 2;
  }
  auto* shared = Share<Shared>();
  std::vector<pid_t> pids;
  for (int rank = 0; rank < world.ranks; ++rank) {
    pids.push_back(Fork([&] { return RankRun(rank, world, shared).Run(); }));
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
  shared->witness.coverage.Print(stdout);
  return result;
}

}  // namespace
}  // namespace maypole::properties

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return maypole::properties::Main();
}
