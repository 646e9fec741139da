// Library: what can reduce tensors, as the bench sees it.
//
// Purpose: the seam between measuring and the thing measured. Maypole stands
// behind it here; a test puts a faulty one there, a comparison its peers.
//
// Thread contract: one thread. Every function is called by all ranks of the
// job, in the same order.
#ifndef MAYPOLE_TESTS_BENCH_LIBRARY_H_
#define MAYPOLE_TESTS_BENCH_LIBRARY_H_

#include <cstdint>
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

class Library {
 public:
  virtual ~Library() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int nodes() const = 0;

  virtual Status Barrier() = 0;

  // Replaces each buffer by its sum over the ranks: submits all of them, the
  // last one first as a backward pass does, then waits for all. When it
  // returns, also with an error, nothing is in flight.
  virtual Status Allreduce(const std::vector<Buffer>& buffers) = 0;

  // `mine` of all ranks, in rank order; equally long on all.
  virtual Status Gather(const std::vector<double>& mine,
                        std::vector<double>* all) = 0;
};

}  // namespace maypole::bench

#endif  // MAYPOLE_TESTS_BENCH_LIBRARY_H_
