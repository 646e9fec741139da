// Spec: random programs of collectives, the same on every rank for one seed.
//
// A program is a list of operations in phases. Every rank submits all of a
// phase, in an order of its own, before it waits for anything without a bound;
// so no order of waiting can make ranks wait for each other in a circle. Names
// are distinct within a program and come again in later ones.
//
// Shapes are drawn at the edges of what the data path distinguishes: nothing,
// a scalar, around 64 bytes, a slice, a chunk, small_bytes, several chunks.
//
// Thread contract: values and pure functions.
#ifndef MAYPOLE_TESTS_PROPERTIES_SPEC_H_
#define MAYPOLE_TESTS_PROPERTIES_SPEC_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "common/types.h"

namespace maypole::properties {

using Random = std::mt19937_64;

// Uniform in [0, n).
inline uint64_t Below(Random& random, uint64_t n) { return random() % n; }
inline bool OneIn(Random& random, uint64_t n) { return Below(random, n) == 0; }

// A generator for one purpose: streams of different purposes are unrelated.
Random RandomFor(uint64_t seed, uint64_t purpose);

// What a program may use.
struct World {
  int ranks = 2;
  int nodes = 1;
  uint32_t chunk_bytes = 512 * 1024;
  uint32_t small_bytes = 64 * 1024;
  uint64_t most_bytes = 256 * 1024;  // of one tensor, about
  int most_operations = 12;          // of one program
};

struct OperationSpec {
  Kind kind = Kind::kBarrier;
  DType dtype = DType::kFloat32;
  Op op = Op::kSum;
  std::string name;  // empty: unnamed, matched by order within the kind
  // Of each rank: they differ only for an allgather, in the first dimension.
  std::vector<std::vector<int64_t>> shape;
  int root = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  bool in_place = false;
  bool arena = false;  // tensors in memory that all local ranks map
  // Values whose sums are rounded: the order of the ranks shows. Otherwise
  // sums are exact in any order.
  bool rounded = false;
  // This rank's shape is another one: an error for all. -1: none.
  int odd_one = -1;
  int phase = 0;
  uint64_t seed = 0;  // of the values

  int64_t Elements(int rank) const;
  uint64_t Bytes(int rank) const;
  std::string Text() const;  // for messages
};

struct Program {
  uint64_t seed = 0;
  int phases = 1;
  std::vector<OperationSpec> operations;
};

Program MakeProgram(uint64_t seed, const World& world);

}  // namespace maypole::properties

#endif  // MAYPOLE_TESTS_PROPERTIES_SPEC_H_
