// Reducer, Library: the bench's interfaces to a library that reduces tensors.
//
// Purpose: separates the measurement from the measured library: Maypole here, a
// faulty library in a test, the peers in the comparison.
//
// Thread contract: one thread. Every function but Allocate is called by all
// ranks of the job, in the same order.
#ifndef MAYPOLE_TESTS_BENCH_CPP_LIBRARY_H_
#define MAYPOLE_TESTS_BENCH_CPP_LIBRARY_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"

namespace maypole::bench {

struct Buffer {
  std::string name;
  std::vector<int64_t> shape;
  std::span<float> data;
};

// The memory of tensors: the rank's own, or memory of the library that all
// ranks of the node map.
enum class Storage { kPrivate, kArena };

struct Memory {
  std::span<float> data;
  std::shared_ptr<void> owner;  // keeps `data` there
};

class Reducer {
 public:
  virtual ~Reducer() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual bool has_arena() const { return false; }

  // The number of tensors reduced so far in the arena, without a copy.
  virtual int64_t arena_operations() const { return 0; }

  // Aligned as torch aligns its tensors. kArena: only if has_arena().
  virtual Status Allocate(Storage storage, int64_t elements, Memory* out);

  // Replaces each buffer by its sum over the ranks: submits all of them, the
  // last one first as a backward pass does, then waits for all. When it
  // returns, also with an error, nothing is in flight.
  virtual Status Allreduce(const std::vector<Buffer>& buffers) = 0;
};

class Library : public Reducer {
 public:
  virtual int nodes() const = 0;

  virtual Status Barrier() = 0;

  // Returns `mine` of all ranks, in rank order; it has the same length on all.
  virtual Status Gather(const std::vector<double>& mine,
                        std::vector<double>* all) = 0;
};

}  // namespace maypole::bench

#endif  // MAYPOLE_TESTS_BENCH_CPP_LIBRARY_H_
