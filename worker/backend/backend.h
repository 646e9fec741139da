// Backend: moves chunks between the nodes of a job.
//
// Purpose: the seam between the network thread of an executor and what carries
// bytes to other nodes (Gloo now). Several chunks are on their way at once. A
// chunk concerns some nodes or all; any two nodes start the chunks that concern
// both with the same sizes in the same order; that order is the coordinator's.
//
//   backend.Prepare(0, 2)            -> addresses[i]: where node i reaches us
//   ... addresses travel through the coordinator ...
//   backend.Connect(their_addresses)
//   backend.OnEnded([](const absl::Status& s) { ... });
//   backend.Start({.chunk = a, .reduces = true, .dtype = DType::kFloat32});
//   backend.Start({.chunk = b, ...});   // -> ended(a), ended(b)
//
// Thread contract: Prepare, Connect, OnEnded, Start from one thread, and all
// but OnEnded may block; Start only for a small chunk while no other is on its
// way. Abort() and the counters from any thread. The callback comes from
// threads of the backend, one call at a time, or from within Start.
//
// Invariants: each Start is answered by one call of the callback, in the order
// of the starts; until then the chunk belongs to the backend, after it nobody
// reads or writes it any more. After an error or Abort() every chunk that has
// not ended, and every later one, ends with an error, soon. A backend serves
// one epoch. No exception leaves it; no callback comes after its destructor.
#ifndef MAYPOLE_WORKER_BACKEND_BACKEND_H_
#define MAYPOLE_WORKER_BACKEND_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/reduce/reduce.h"
#include "common/types.h"

namespace maypole::worker {

inline constexpr uint32_t kEveryNode = UINT32_MAX;

// A part of a chunk that node `from` has and node `to` needs, or all others do.
struct Segment {
  uint32_t from = 0;
  uint32_t to = kEveryNode;
  uint64_t offset = 0;  // in the chunk
  uint64_t bytes = 0;

  bool operator==(const Segment&) const = default;
};

// What to do with a chunk.
struct Work {
  std::span<std::byte> chunk;
  // Reduce the chunk over its nodes, in place, then finish it.
  bool reduces = false;
  // With reduces: a node needs the result of the segments `to` it only, and has
  // nonsense in the rest afterwards. Without: all nodes get all of it, with the
  // same bits.
  bool scatters = false;
  Op op = Op::kSum;
  DType dtype = DType::kUint8;
  Epilogue finish = {};
  // Without reduces: who gives what to whom. What does not concern this node
  // may be left out; the rest is the same, in the same order, at both ends.
  std::vector<Segment> segments = {};
  // Who has a part in the chunk, ascending; empty: all.
  std::vector<uint32_t> nodes = {};
};

class Backend {
 public:
  virtual ~Backend() = default;

  // One opaque address per node; the own place is empty.
  virtual absl::StatusOr<std::vector<std::string>> Prepare(uint32_t node_index,
                                                           uint32_t nodes) = 0;
  // addresses[i]: where we reach node i.
  virtual absl::Status Connect(const std::vector<std::string>& addresses) = 0;

  // Who hears of ended chunks; before the first Start.
  virtual void OnEnded(std::function<void(const absl::Status&)> on_ended) = 0;
  virtual void Start(Work work) = 0;

  // Makes what is on its way end with kAborted, and a Connect that waits
  // return it, soon. May be called many times.
  virtual void Abort() = 0;

  // Payload bytes of the chunks that have ended well.
  virtual uint64_t bytes_sent() const = 0;
  virtual uint64_t bytes_received() const = 0;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_BACKEND_H_
