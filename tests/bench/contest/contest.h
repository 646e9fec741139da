// Contest: one rank of a contestant of the comparison.
//
// Purpose: all contestants' processes are alive at the same time and sleep; the
// conductor (compare.py) lets one contestant after the other do a few rounds. A
// rank talks to the conductor over a unix SOCK_SEQPACKET socket, a line of text
// per message:
//
//   rank       hello CONTESTANT RANK PID STORAGE...   (private, arena)
//
//   conductor  open ID WHAT STORAGE OPERATIONS        (WHAT: bytes or resnet)
//   rank       ok                                     has made the tensors
//   conductor  turn ID ROUND WARMUPS ROUNDS
//   rank       times MICROSECONDS...                  of one operation each
//   conductor  close ID
//   rank       closed TENSORS ARENA                   reduced tensors, and
//   those
//                                                     of them in the arena
//   conductor  quit
//   rank       ok                                     and ends
//
//   rank       error TEXT                             instead, and ends
//
// A round: fill the tensors with new values; wait at the start line; start the
// clock; OPERATIONS times allreduce in place, each submitted and waited for;
// stop the clock; check each element. (The n-th allreduce of the same tensor
// multiplies the sum by the number of ranks, which is checked.)
//
// The environment sets: BENCH_CONTESTANT, BENCH_CONDUCTOR (socket),
// BENCH_START_LINE (see start_line.h). rank_loop.py is the Python twin.
//
// Thread contract: one thread.
#ifndef MAYPOLE_TESTS_BENCH_CONTEST_CONTEST_H_
#define MAYPOLE_TESTS_BENCH_CONTEST_CONTEST_H_

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/status.h"
#include "common/system/fd.h"
#include "tests/bench/contest/start_line.h"
#include "tests/bench/cpp/library.h"
#include "tests/bench/cpp/pattern.h"

namespace maypole::bench {

class Contest {
 public:
  // `reducer` must outlive the contest.
  explicit Contest(Reducer* reducer);

  // Runs until the conductor says quit or closes the connection.
  Status Run();

 private:
  struct Case {
    std::string what;
    int operations = 0;
    std::vector<Memory> memory;
    std::vector<Buffer> buffers;
    int64_t reduced = 0;   // tensors
    int64_t in_arena = 0;  // of them
  };
  using Words = std::vector<std::string>;

  Status Enter();
  Status Send(const std::string& line);
  // Empty: the conductor has closed the connection.
  Status Receive(Words* words);

  Status Obey(const Words& words, std::string* answer);
  Status Open(const Words& words);
  Status Turn(const Words& words, std::string* answer);
  Status Close(const Words& words, std::string* answer);
  Status Round(Case* c, int64_t round, double* microseconds);
  Status Check(const Case& c, int64_t round) const;

  Reducer* const reducer_;
  const Pattern pattern_;
  Fd conductor_;
  std::unique_ptr<StartLine> start_line_;
  std::unordered_map<std::string, Case> cases_;
};

// A contestant's main(): calls Run() and prints its error to stderr; returns
// the exit status.
int RunContest(Reducer* reducer);

// The value of a variable that the conductor must set; else an error.
Status Environment(const char* name, std::string* value);

}  // namespace maypole::bench

#endif  // MAYPOLE_TESTS_BENCH_CONTEST_CONTEST_H_
