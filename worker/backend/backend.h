// Backend: moves chunks between the nodes of a job.
//
// Purpose: the seam between the network thread of an executor and what carries
// bytes to other nodes (Gloo now). All nodes of a job make the same calls with
// the same sizes in the same order; that order is the coordinator's.
//
//   backend.Prepare(0, 2)            -> addresses[i]: where node i reaches us
//   ... addresses travel through the coordinator ...
//   backend.Connect(their_addresses)
//   backend.Allreduce(chunk, DType::kFloat32, {.divisor = 4});
//
// Thread contract: Prepare, Connect, Allreduce, Exchange from one thread, and
// they may block; Abort() and the counters from any thread.
//
// Invariants: after an error or Abort() every further call fails at once; a
// backend serves one epoch. No exception leaves it. When a call has returned,
// nobody writes to its chunk any more.
#ifndef MAYPOLE_WORKER_BACKEND_BACKEND_H_
#define MAYPOLE_WORKER_BACKEND_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/reduce.h"
#include "common/types.h"

namespace maypole::worker {

// A part of a chunk that one node has and all others need.
struct Segment {
  uint32_t node = 0;
  uint64_t offset = 0;  // in the chunk
  uint64_t bytes = 0;

  bool operator==(const Segment&) const = default;
};

class Backend {
 public:
  virtual ~Backend() = default;

  // One opaque address per node; the own place is empty.
  virtual absl::StatusOr<std::vector<std::string>> Prepare(uint32_t node_index,
                                                           uint32_t nodes) = 0;
  // addresses[i]: where we reach node i.
  virtual absl::Status Connect(const std::vector<std::string>& addresses) = 0;

  // Sums the chunk over all nodes, in place, then finishes it. All nodes end
  // with the same bits.
  virtual absl::Status Allreduce(std::span<std::byte> chunk, DType dtype,
                                 const Finish& finish) = 0;
  // Gives every segment of this node to all others and receives theirs.
  virtual absl::Status Exchange(std::span<std::byte> chunk,
                                std::span<const Segment> segments) = 0;

  // Makes a blocked call return kAborted, soon. May be called many times.
  virtual void Abort() = 0;

  // Payload bytes so far.
  virtual uint64_t bytes_sent() const = 0;
  virtual uint64_t bytes_received() const = 0;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_BACKEND_H_
