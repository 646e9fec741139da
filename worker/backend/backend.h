// Backend: moves chunks between the nodes of a job.
//
// Purpose: the interface between an executor's network thread and what carries
// bytes to other nodes (TcpBackend; tests have others). Several chunks are in
// flight at the same time. A chunk concerns some or all nodes; any two nodes
// start the chunks that concern both with the same sizes and in the same order,
// which the coordinator determines.
//
//   backend.Prepare(0, 2)         -> addresses[i]: where node i reaches this
//   one
//   ... addresses travel through the coordinator ...
//   backend.Connect(their_addresses)
//   backend.OnEnded([](const absl::Status& s) { ... });
//   backend.Start({.chunk = a, .reduces = true, .dtype = DType::kFloat32});
//   backend.Start({.chunk = b, ...});   // -> ended(a), ended(b)
//
// Thread contract: Prepare, Connect, OnEnded and Start from one thread. Prepare
// and Connect may block. Abort(), status() and the counters from any thread.
// The callback comes from threads of the backend, one call at a time, or from
// within Start.
//
// Invariants: for each Start there is one call of the callback, in the order of
// the starts. Until then the chunk belongs to the backend; afterwards the
// backend no longer reads or writes it. After an error or Abort(), every chunk
// that has not ended, and every later one, soon ends with an error. A backend
// serves one epoch. It throws no exceptions; no callback comes after its
// destructor.
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
#include "worker/backend/peer_stream.h"

namespace maypole::worker {

inline constexpr uint32_t kEveryNode = UINT32_MAX;

// A part of a chunk that node `from` has and node `to` (or every other node)
// needs.
struct Segment {
  uint32_t from = 0;
  uint32_t to = kEveryNode;
  uint64_t offset = 0;  // in the chunk
  uint64_t bytes = 0;

  bool operator==(const Segment&) const = default;
};

// A chunk and what to do with it.
struct Work {
  std::span<std::byte> chunk;
  // If true, the chunk is reduced over its nodes, in place, and `finish` is
  // applied.
  bool reduces = false;
  // Other chunks of the same operation are on their way with it, so that the
  // network's bandwidth counts, not its latency. The same on all nodes.
  bool streams = false;
  // With `reduces`. If true, a node needs only the result of the segments `to`
  // it; the rest of its chunk is undefined afterwards. If false, all nodes get
  // the whole result, with the same bits.
  bool scatters = false;
  Op op = Op::kSum;
  DType dtype = DType::kUint8;
  Epilogue finish = {};
  // Without `reduces`: which node sends which bytes to which node. Segments
  // that do not concern this node may be omitted; the others are the same, in
  // the same order, at both ends.
  std::vector<Segment> segments = {};
  // The nodes that have a part in the chunk, ascending; empty: all nodes.
  std::vector<uint32_t> nodes = {};
};

class Backend {
 public:
  virtual ~Backend() = default;

  // Returns one opaque address per node; the own entry is empty.
  virtual absl::StatusOr<std::vector<std::string>> Prepare(uint32_t node_index,
                                                           uint32_t nodes) = 0;
  // addresses[i] is where this node reaches node i.
  virtual absl::Status Connect(const std::vector<std::string>& addresses) = 0;

  // After Connect(): a connection to each other node for short messages between
  // the executors, by node; none to this one. The backend does not use or watch
  // them. Call it once.
  virtual std::vector<PeerStream> TakeMessageConnections() = 0;

  // Sets the callback for ended chunks; call it before the first Start.
  virtual void OnEnded(std::function<void(const absl::Status&)> on_ended) = 0;
  virtual void Start(Work work) = 0;

  // Makes chunks in flight end, and a waiting Connect return, with kAborted
  // soon. May be called repeatedly.
  virtual void Abort() = 0;

  // OK, or why no further chunk can be exchanged: a connection to another node
  // has broken, be a chunk in flight or not, or Abort() was called.
  virtual absl::Status status() const = 0;

  // Payload bytes of the chunks that have ended without error.
  virtual uint64_t bytes_sent() const = 0;
  virtual uint64_t bytes_received() const = 0;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_BACKEND_H_
