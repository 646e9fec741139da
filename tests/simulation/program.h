// Program: what the ranks of one epoch do, and what must come of it.
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
  std::vector<int> aside;  // of them, those that have joined
  bool in_place = false;
  std::vector<Signature> signatures;         // by rank
  std::vector<std::vector<int64_t>> splits;  // alltoall: by rank
  bool matches = true;                       // those who submit it agree

  Kind kind() const { return signatures.front().kind; }
  bool IsAside(int rank) const;
  // Submits it itself.
  bool HasPart(int rank) const;
  size_t PositionOf(int rank) const;
  std::string Text() const;
};

// A request for a process set, or for its end, by all ranks.
struct SetPlan {
  enum class End { kDone, kDiffers, kTwin };
  bool removes = false;
  size_t removed = 0;                   // the set's place in Program::sets
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
    kLeave
  };
  What what = What::kCompute;
  size_t index = 0;      // of the operation, set request, join
  bool awaited = false;  // kSubmit: kWait comes next
  int64_t time = 0;      // kCompute, ns
};

struct Program {
  // Nothing goes wrong but what the program does itself.
  bool calm = false;
  // A rank that leaves in the middle; -1: none.
  int leaver = -1;
  // At last the ranks wait for each other.
  bool deadlocks = false;
  std::vector<Planned> operations;
  std::vector<SetPlan> sets;
  size_t joins = 0;
  std::vector<std::vector<Action>> actions;  // by rank
};

// new_names: each step has its own, and unnamed operations there are none.
Program MakeProgram(Random* random, int size, bool calm, bool new_names);

// The input of a rank: small whole numbers, all of them different from those
// of its neighbours.
std::vector<std::byte> InputOf(const Planned& operation, int rank);
// What the rank must get if all have submitted it.
std::vector<std::byte> ResultOf(const Planned& operation, int rank);
// Of an alltoall: rows from each rank of the process set.
std::vector<int64_t> ReceivedOf(const Planned& operation, int rank);

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_PROGRAM_H_
