// Reducer, Library: what can reduce tensors, as the bench sees it.
//
// Purpose: the seam between measuring and the thing measured. Maypole stands
// behind it here; a test puts a faulty one there, the comparison its peers.
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

// Where tensors lie: in the rank's own memory, or in memory of the library that
// all ranks of the node map.
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

  // Tensors reduced so far without a copy, where they lie.
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

  // `mine` of all ranks, in rank order; equally long on all.
  virtual Status Gather(const std::vector<double>& mine,
                        std::vector<double>* all) = 0;
};

}  // namespace maypole::bench

#endif  // MAYPOLE_TESTS_BENCH_CPP_LIBRARY_H_
