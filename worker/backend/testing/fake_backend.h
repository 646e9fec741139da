// FakeBackend: a Backend for tests that records the started chunks.
//
// Chunks end at once, with `result`. If `holds` is set, they end when the test
// calls End(), from any thread, one call at a time. `broken` is its status().
//
// Thread contract: as Backend; only the thread that calls Start reads `calls`.
#ifndef MAYPOLE_WORKER_BACKEND_TESTING_FAKE_BACKEND_H_
#define MAYPOLE_WORKER_BACKEND_TESTING_FAKE_BACKEND_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "worker/backend/backend.h"

namespace maypole::worker {

class FakeBackend : public Backend {
 public:
  absl::StatusOr<std::vector<std::string>> Prepare(uint32_t node_index,
                                                   uint32_t nodes) override {
    std::vector<std::string> addresses(nodes, "fake");
    addresses[node_index].clear();
    return addresses;
  }
  absl::Status Connect(const std::vector<std::string>&) override {
    return result;
  }
  std::vector<PeerStream> TakeMessageConnections() override { return {}; }
  void OnEnded(std::function<void(const absl::Status&)> f) override {
    on_ended_ = std::move(f);
  }
  void Start(Work work) override {
    calls.push_back(std::move(work));
    if (!holds) on_ended_(result);
  }
  void End(const absl::Status& status) { on_ended_(status); }
  void Abort() override { ++aborts; }
  absl::Status status() const override { return broken; }
  uint64_t bytes_sent() const override { return 0; }
  uint64_t bytes_received() const override { return 0; }

  std::vector<Work> calls;
  absl::Status result;
  absl::Status broken;
  bool holds = false;
  int aborts = 0;

 private:
  std::function<void(const absl::Status&)> on_ended_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_TESTING_FAKE_BACKEND_H_
