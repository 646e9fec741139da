// GlooBackend: Backend over Gloo's TCP pairs, one to every other node.
//
// There is no store: every pair's address travels through the coordinator.
// After connecting, both ends show each other a nonce of the job and the epoch,
// so that a stranger who reached the port first is noticed.
//
// Allreduce: the chunk is cut in one segment per node. Each node sends segment
// i to node i, sums the own segment over all nodes in node order, finishes it
// and sends it to all others. This moves the bytes of a ring (2 (n-1)/n of the
// chunk each way) in two steps instead of 2 (n-1), rounds half precision once,
// and gives equal bits everywhere, because one node alone computes a segment.
//
// Waits have no timeout of Gloo's, which would break all its pairs: who is late
// is not dead. Abort() ends them.
#ifndef MAYPOLE_WORKER_BACKEND_GLOO_BACKEND_H_
#define MAYPOLE_WORKER_BACKEND_GLOO_BACKEND_H_

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "worker/backend/backend.h"

namespace maypole::worker {

struct GlooOptions {
  std::string host;  // address to listen on
  uint64_t nonce = 0;
  // "node n1 (host b)" by node index, for messages.
  std::vector<std::string> node_names;
  // A peer that cannot be reached within this fails Connect.
  std::chrono::milliseconds connect_timeout{20000};
};

class GlooBackend : public Backend {
 public:
  explicit GlooBackend(GlooOptions options);
  ~GlooBackend() override;

  absl::StatusOr<std::vector<std::string>> Prepare(uint32_t node_index,
                                                   uint32_t nodes) override;
  absl::Status Connect(const std::vector<std::string>& addresses) override;
  absl::Status Allreduce(std::span<std::byte> chunk, DType dtype,
                         const Finish& finish) override;
  absl::Status Exchange(std::span<std::byte> chunk,
                        std::span<const Segment> segments) override;
  void Abort() override;
  uint64_t bytes_sent() const override { return sent_; }
  uint64_t bytes_received() const override { return received_; }

 private:
  class Mesh;  // the Gloo context with its pairs
  class Wave;  // sends and receives of one step, waited for together

  absl::Status ConnectPairs(const std::vector<std::string>& addresses);
  absl::Status ShakeHands();
  absl::Status Usable() const;
  absl::Status Finished(Wave& wave);
  absl::Status Broken(const std::string& text);
  std::string NodeName(uint32_t node) const;

  const GlooOptions options_;
  uint32_t self_ = 0;
  uint32_t nodes_ = 1;
  std::vector<std::byte> inbox_;  // others' versions of the own segment
  std::atomic<uint64_t> sent_{0};
  std::atomic<uint64_t> received_{0};
  std::atomic<bool> aborted_{false};
  bool broken_ = false;

  std::mutex mutex_;  // guards what Abort() touches
  std::shared_ptr<Mesh> mesh_;
  Wave* wave_ = nullptr;  // waited for now
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_GLOO_BACKEND_H_
