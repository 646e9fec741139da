// FakeBackend: a Backend for tests that records its calls.
//
// Thread contract: as Backend; `calls` is read when no call is running.
#ifndef MAYPOLE_WORKER_BACKEND_FAKE_BACKEND_H_
#define MAYPOLE_WORKER_BACKEND_FAKE_BACKEND_H_

#include <functional>
#include <string>
#include <vector>

#include "worker/backend/backend.h"

namespace maypole::worker {

class FakeBackend : public Backend {
 public:
  struct Call {
    Kind kind = Kind::kAllreduce;
    std::byte* data = nullptr;
    size_t bytes = 0;
    DType dtype = DType::kUint8;
    Finish finish;
    std::vector<Segment> segments;
  };

  absl::StatusOr<std::vector<std::string>> Prepare(uint32_t node_index,
                                                   uint32_t nodes) override {
    std::vector<std::string> addresses(nodes, "fake");
    addresses[node_index].clear();
    return addresses;
  }
  absl::Status Connect(const std::vector<std::string>&) override {
    return result;
  }
  absl::Status Allreduce(std::span<std::byte> chunk, DType dtype,
                         const Finish& finish) override {
    calls.push_back(
        {Kind::kAllreduce, chunk.data(), chunk.size(), dtype, finish, {}});
    if (on_call) on_call(chunk);
    return result;
  }
  absl::Status Exchange(std::span<std::byte> chunk,
                        std::span<const Segment> segments) override {
    calls.push_back({Kind::kAllgather,
                     chunk.data(),
                     chunk.size(),
                     DType::kUint8,
                     {},
                     {segments.begin(), segments.end()}});
    if (on_call) on_call(chunk);
    return result;
  }
  void Abort() override { ++aborts; }
  uint64_t bytes_sent() const override { return 0; }
  uint64_t bytes_received() const override { return 0; }

  std::vector<Call> calls;
  std::function<void(std::span<std::byte>)> on_call;
  absl::Status result;
  int aborts = 0;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_FAKE_BACKEND_H_
