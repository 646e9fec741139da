// Spec: random programs of collectives, the same on every rank for one seed.
//
// A program is a list of phases. Every rank submits all operations of a phase
// that concern it, in its own order, before it waits without a time limit for
// any operation of this phase or a later one; the exceptions are barriers,
// which have one order on all ranks. So no order of waiting can cause a
// deadlock.
//
// Process sets are made and removed in one phase and used in later ones. Ranks
// join after phases: a rank that has joined takes no part in the phases that
// follow, up to the one after which the last rank joins. Operations are unique
// by (process set, kind, name) within a phase; names come again in later phases
// and programs. The last phase ends with an operation of all ranks, so that no
// rank is more than one program ahead.
//
// Shapes are drawn at the edges of what the data path distinguishes: nothing,
// a scalar, around 64 bytes, a slice, a chunk, eager_bytes, several chunks.
//
// Thread contract: values and pure functions.
#ifndef MAYPOLE_TESTS_PROPERTIES_SPEC_SPEC_H_
#define MAYPOLE_TESTS_PROPERTIES_SPEC_SPEC_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "common/types.h"
#include "common/wire/signature.h"

namespace maypole::properties {

using Random = std::mt19937_64;

// Uniform in [0, n).
inline uint64_t Below(Random& random, uint64_t n) { return random() % n; }
inline bool OneIn(Random& random, uint64_t n) { return Below(random, n) == 0; }

// A generator for one purpose: streams of different purposes are unrelated.
Random RandomFor(uint64_t seed, uint64_t purpose);

// The settings of programs.
struct World {
  int ranks = 2;
  int nodes = 1;
  // Number of ranks of each node; empty: as even as possible, with one more on
  // the first nodes.
  std::vector<int> local_sizes;
  uint32_t chunk_bytes = 512 * 1024;
  uint32_t eager_bytes = 64 * 1024;
  uint64_t most_bytes = 256 * 1024;  // of one tensor, about
  int most_operations = 12;          // of one program

  // Process sets that exist from the start: the program's sets 1, 2, ...
  std::vector<std::vector<int>> sets;
  bool set_changes = false;  // programs make and remove others
  bool joins = false;
  bool groups = false;

  int NodeOf(int rank) const;
  std::vector<int> LocalSizes() const;
};

// Sets for World::sets: one rank, a node, across nodes, unequal parts.
std::vector<std::vector<int>> UsualSets(const World& world);

// The kind of float values.
enum class Values {
  kExact,    // sums and products over the ranks are exact in any order
  kRounded,  // they are not: the order shows
  kAnyBits,  // NaN, infinities, subnormals; for min and max
};

// The property on which ranks disagree deliberately.
enum class Aspect {
  kNone,
  kShape,      // one dimension more
  kDimension,  // the last one greater
  kDType,
  kOp,
  kPrescale,
  kPostscale,
  kRoot,
};

// Vectors by rank are by position in `ranks`.
struct OperationSpec {
  Kind kind = Kind::kBarrier;
  DType dtype = DType::kFloat32;
  Op op = Op::kSum;
  std::string name;  // empty: unnamed, matched by order within set and kind
  int set = 0;       // 0: all ranks; else a set of World or Program
  std::vector<int> ranks;  // its members, ascending
  std::vector<int> nodes;  // of each
  // Bit r: global rank r has joined and stands aside.
  uint64_t aside = 0;
  // They differ only for an allgather or alltoall, in the first dimension.
  std::vector<std::vector<int64_t>> shape;
  std::vector<std::vector<int64_t>> splits;  // alltoall: of each rank
  bool equal_parts = false;  // alltoall: splits need not be given
  int root = 0;              // global rank
  double prescale = 1.0;
  double postscale = 1.0;
  bool in_place = false;
  bool arena = false;  // tensors in memory that all local ranks map
  Values values = Values::kExact;
  // This global rank differs in `aspect`: an error for all. -1: none.
  int odd_one = -1;
  Aspect aspect = Aspect::kNone;
  int group = -1;  // operations of one number are submitted together
  int phase = 0;
  uint64_t seed = 0;  // of the values

  int PositionOf(int rank) const;  // -1: no member
  // The rank submits it.
  bool Concerns(int rank) const {
    return PositionOf(rank) >= 0 && !IsAside(rank);
  }
  bool IsAside(int rank) const { return (aside >> rank & 1) != 0; }
  bool within_node() const { return nodes.front() == nodes.back(); }
  // All get the same error: they disagree, or the root stands aside.
  bool MustFail() const {
    return odd_one >= 0 || (kind == Kind::kBroadcast && IsAside(root));
  }
  // The signature that the rank submits; process_set stays 0.
  Signature SignatureOf(int rank) const;
  uint64_t Bytes(int rank) const;  // of its input
  std::string Text() const;        // for messages
};

// How a request for a process set must end.
enum class SetOutcome { kOk, kDisagreed, kInvalid };

struct SetRequest {
  int phase = 0;
  bool remove = false;
  int set = 0;                          // the set that it makes or removes
  std::vector<std::vector<int>> asked;  // by rank; of a removal empty
  SetOutcome outcome = SetOutcome::kOk;

  std::string Text() const;
};

struct Phase {
  uint64_t aside = 0;  // ranks that stand aside
  uint64_t joins = 0;  // ranks that join after it
};

struct Program {
  uint64_t seed = 0;
  std::vector<Phase> phases;
  std::vector<std::vector<int>> sets;  // members; [0] all, then World's, ours
  std::vector<OperationSpec> operations;  // by phase; groups are contiguous
  std::vector<SetRequest> requests;       // by phase
};

Program MakeProgram(uint64_t seed, const World& world);

}  // namespace maypole::properties

#endif  // MAYPOLE_TESTS_PROPERTIES_SPEC_SPEC_H_
