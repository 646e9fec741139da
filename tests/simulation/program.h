// Program: what the ranks of one epoch do, and the expected results.
//
// Thread contract: values.
#ifndef MAYPOLE_TESTS_SIMULATION_PROGRAM_H_
#define MAYPOLE_TESTS_SIMULATION_PROGRAM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/wire/signature.h"
#include "tests/simulation/random.h"

namespace maypole::simulation {

// An operation as the ranks submit it. Vectors by rank are by global rank.
struct Planned {
  uint32_t number = 0;     // in the program
  std::string name;        // empty: unnamed
  int set = -1;            // in Program::sets; -1: all ranks
  std::vector<int> ranks;  // of the process set, ascending
  std::vector<int> aside;  // those of `ranks` that have joined
  bool in_place = false;
  std::vector<Signature> signatures;         // by rank
  std::vector<std::vector<int64_t>> splits;  // alltoall: by rank
  bool matches = true;  // the signatures of all ranks agree

  Kind kind() const { return signatures.front().kind; }
  bool IsAside(int rank) const;
  // The rank is in the process set and has not joined: it submits the operation
  // itself.
  bool HasPart(int rank) const;
  size_t PositionOf(int rank) const;
  std::string Text() const;
};

// A request of all ranks to make or remove a process set.
struct SetPlan {
  enum class End { kDone, kDiffers, kTwin };
  bool removes = false;
  size_t removed = 0;                   // the set's index in Program::sets
  std::vector<std::vector<int>> asked;  // members, by rank
  End end = End::kDone;
};

struct Action {
  enum class What {
    kSubmit,
    kWait,
    kPoll,
    kCompute,
    kDuplicate,
    kSetRequest,  // submits and waits
    kJoin,        // the same
    kSync,        // elastic: gets the job's state
    kCommit,      // elastic: saves it, and asks whether a change is wanted
    kLeave
  };
  What what = What::kCompute;
  // Of the operation, set request, join. kCommit: how many operations come
  // before it.
  size_t index = 0;
  bool awaited = false;  // kSubmit: kWait comes next
  // kCompute: its length. kSubmit: how much later than the submission the input
  // is written, as by a GPU; 0: it is there. In ns.
  int64_t time = 0;
};

struct Program {
  // There are no faults except those of the program itself.
  bool calm = false;
  // A rank that leaves in the middle; -1: none.
  int leaver = -1;
  // The program ends in a deadlock of all ranks.
  bool deadlocks = false;
  std::vector<Planned> operations;
  std::vector<SetPlan> sets;
  size_t joins = 0;
  std::vector<std::vector<Action>> actions;  // by rank
};

struct ProgramOptions {
  int size = 1;
  bool calm = false;
  // Each step has its own names, and there are no unnamed operations.
  bool new_names = false;
  // It begins with a sync, and has a commit after each step.
  bool elastic = false;
  // Most steps are repeated a number of times.
  bool repeats = false;
};

Program MakeProgram(Random* random, const ProgramOptions& options);

// The input of a rank: small whole numbers, each different from those of its
// neighbours.
std::vector<std::byte> InputOf(const Planned& operation, int rank);
// The result that the rank must get if all ranks have submitted the operation.
std::vector<std::byte> ResultOf(const Planned& operation, int rank);
// For an alltoall: the rows received from each rank of the process set.
std::vector<int64_t> ReceivedOf(const Planned& operation, int rank);

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_PROGRAM_H_
