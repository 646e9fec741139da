// Rounds of a job in which one rank dies; the others must get an error about
// it.
//
//   killed_ranks --agents=/path/a[,/path/b] --ranks=3 --rounds=10 --seed=1
//
// Kills a random rank (SIGKILL) at a random time of each round. With
// --kill_at=arrival.claimed:3 the victim kills itself as it passes that kill
// point (common/board/kill_point.h) for the third time. With --executor the
// first node's executor is killed, because only its death makes ranks write an
// abort; --kill_at may then kill the rank that writes it.
//
// A round in which the victim never reaches its kill point must end without an
// error on all ranks, and counts as not reached. Prints one line per failed
// round, and the sums; exits with 0 if no round failed.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "tests/kill_points/judge.h"
#include "tests/kill_points/rank.h"
#include "tests/kill_points/scoreboard.h"
#include "tests/properties/player/ranks.h"

ABSL_FLAG(std::vector<std::string>, agents, {}, "sockets, one a node");
ABSL_FLAG(std::vector<std::string>, workers, {}, "the agents' process ids");
ABSL_FLAG(int, ranks, 2, "of the job");
ABSL_FLAG(std::string, job, "killed", "the job's id begins with this");
ABSL_FLAG(uint64_t, seed, 1, "of the first round; then seed + 1, ...");
ABSL_FLAG(int, rounds, 1, "how many");
ABSL_FLAG(std::string, kill_at, "", "NAME:NTH; empty: at a random time");
ABSL_FLAG(int, victim, -1, "which rank dies; -1: a random one");
ABSL_FLAG(bool, executor, false, "kill the first node's executor");
ABSL_FLAG(uint32_t, chunk_bytes, 512 * 1024, "as the agents' flag");
ABSL_FLAG(uint64_t, most_bytes, 128 * 1024, "of a tensor");
ABSL_FLAG(int, most_ms, 40, "the random time is at most this");
ABSL_FLAG(int, programs, 100, "of a round without a death");
ABSL_FLAG(int, play_ms, 2000, "of a round without a death");
ABSL_FLAG(int, grace_ms, 300, "how long memory is watched after an error");

namespace maypole::kill_points {
namespace {

using properties::NowNs;

// A round that takes longer than this hangs.
constexpr int kRoundMs = 20000;

Round MakeRound(uint64_t seed) {
  Round r;
  r.agents = absl::GetFlag(FLAGS_agents);
  r.world.ranks = absl::GetFlag(FLAGS_ranks);
  r.world.nodes = static_cast<int>(r.agents.size());
  r.world.chunk_bytes = absl::GetFlag(FLAGS_chunk_bytes);
  r.world.most_bytes = absl::GetFlag(FLAGS_most_bytes);
  r.world.most_operations = kOperations;
  r.job = absl::StrCat(absl::GetFlag(FLAGS_job), ".", getpid(), ".", seed);
  r.seed = seed * 100003;
  r.programs = std::min(absl::GetFlag(FLAGS_programs), kPrograms);
  r.play_ms = absl::GetFlag(FLAGS_play_ms);
  r.grace_ms = absl::GetFlag(FLAGS_grace_ms);
  r.victim = absl::GetFlag(FLAGS_victim);
  auto random = properties::RandomFor(seed, 100);
  if (r.victim < 0) {
    r.victim = static_cast<int>(
        properties::Below(random, static_cast<uint64_t>(r.world.ranks)));
  }
  return r;
}

// The executor that the agent has started: its only child.
pid_t ExecutorOf(const std::string& worker) {
  std::ifstream children("/proc/" + worker + "/task/" + worker + "/children");
  pid_t pid = 0;
  children >> pid;
  return pid;
}

class RoundRunner {
 public:
  RoundRunner(const Round& round, Scoreboard* board)
      : round_(round), board_(board) {}

  // Fills in the result of the round.
  void Run();
  const Verdict& verdict() const { return verdict_; }
  bool victim_died() const { return victim_died_; }

 private:
  void Start();
  bool AllJoined() const;
  void KillAtRandom();
  void AwaitEnds();
  void Reap(pid_t pid, int status);

  const Round& round_;
  Scoreboard* const board_;
  std::vector<pid_t> pids_;
  size_t left_ = 0;
  bool victim_died_ = false;
  int64_t died_ns_ = 0;  // death of the rank or, if earlier, of the executor
  Verdict verdict_;
};

void RoundRunner::Start() {
  for (int rank = 0; rank < round_.world.ranks; ++rank) {
    pids_.push_back(properties::Fork([&, rank] {
      if (rank == round_.victim && !absl::GetFlag(FLAGS_kill_at).empty()) {
        setenv("MAYPOLE_KILL_AT", absl::GetFlag(FLAGS_kill_at).c_str(), 1);
      }
      return RunRank(round_, rank, board_);
    }));
  }
  left_ = pids_.size();
}

bool RoundRunner::AllJoined() const {
  for (int r = 0; r < round_.world.ranks; ++r) {
    if (board_->ranks[r].state == State::kStarting) return false;
  }
  return true;
}

// Called once all have joined: before that, ranks wait for missing ones.
void RoundRunner::KillAtRandom() {
  const int64_t patience = NowNs() + kRoundMs * int64_t{1000000};
  while (!AllJoined() && NowNs() < patience) usleep(200);
  auto random = properties::RandomFor(round_.seed, 101);
  usleep(static_cast<useconds_t>(properties::Below(
      random, static_cast<uint64_t>(absl::GetFlag(FLAGS_most_ms)) * 1000 + 1)));
  const bool executor = absl::GetFlag(FLAGS_executor);
  const pid_t pid = executor ? ExecutorOf(absl::GetFlag(FLAGS_workers)[0])
                             : pids_[static_cast<size_t>(round_.victim)];
  died_ns_ = NowNs();
  if (pid > 0) kill(pid, SIGKILL);
}

void RoundRunner::Reap(pid_t pid, int status) {
  --left_;
  const bool victim = pid == pids_[static_cast<size_t>(round_.victim)];
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && victim) {
    victim_died_ = true;
    if (died_ns_ == 0) died_ns_ = board_->ranks[round_.victim].alive_ns;
  } else if (WIFSIGNALED(status) && verdict_.wrong.empty()) {
    verdict_.wrong =
        absl::StrCat("a rank was ended by signal ", WTERMSIG(status));
  }
}

void RoundRunner::AwaitEnds() {
  const int64_t patience = NowNs() + kRoundMs * int64_t{1000000};
  while (left_ > 0) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid > 0) {
      Reap(pid, status);
      continue;
    }
    if (NowNs() > patience) break;
    usleep(200);
  }
  if (left_ == 0) return;
  for (const pid_t pid : pids_) kill(pid, SIGKILL);
  while (left_ > 0 && waitpid(-1, nullptr, 0) > 0) --left_;
}

void RoundRunner::Run() {
  Start();
  const bool executor = absl::GetFlag(FLAGS_executor);
  if (executor || absl::GetFlag(FLAGS_kill_at).empty()) KillAtRandom();
  AwaitEnds();
  if (!verdict_.wrong.empty()) return;
  if (!executor && !victim_died_) {
    verdict_ = JudgePeace(round_, *board_);
    return;
  }
  verdict_ =
      JudgeDeath(round_, *board_, victim_died_ ? round_.victim : -1, died_ns_,
                 executor ? "died" : absl::StrCat("rank ", round_.victim));
}

int Main() {
  if (absl::GetFlag(FLAGS_ranks) > kRanks ||
      absl::GetFlag(FLAGS_agents).empty()) {
    std::fprintf(stderr, "--ranks: at most %d; --agents is required\n", kRanks);
    return 2;
  }
  int wrong = 0, reached = 0;
  double worst_ms = 0;
  for (int i = 0; i < absl::GetFlag(FLAGS_rounds); ++i) {
    const uint64_t seed = absl::GetFlag(FLAGS_seed) + static_cast<uint64_t>(i);
    const Round round = MakeRound(seed);
    auto* board = properties::Share<Scoreboard>();
    RoundRunner runner(round, board);
    runner.Run();
    properties::Unshare(board);
    reached += runner.victim_died();
    worst_ms = std::max(worst_ms, runner.verdict().worst_ms);
    if (runner.verdict().wrong.empty()) continue;
    ++wrong;
    std::printf("WRONG: seed=%lu victim=%d kill_at=%s: %s\n", seed,
                round.victim, absl::GetFlag(FLAGS_kill_at).c_str(),
                runner.verdict().wrong.c_str());
  }
  std::printf("rounds=%d reached=%d wrong=%d worst_ms=%.0f\n",
              absl::GetFlag(FLAGS_rounds), reached, wrong, worst_ms);
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace maypole::kill_points

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return maypole::kill_points::Main();
}
