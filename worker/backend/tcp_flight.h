// TcpBackend::Flight: one chunk in flight.
//
// Purpose: goes through the stages of the chunk's plan (exchange_plan.h). No
// thread waits for it: whoever ends the last transfer of a stage (the loop's
// thread, as a rule) reduces and posts the sends of the next stage.
//
// Thread contract: Start() once. Cancel() from any thread. The flight tells its
// backend once that it has ended; the backend must not destroy it before.
//
// Invariants: `open_` counts what is posted and has not ended, and one more
// until the last stage is over. `awaited_[s]` counts what stage s still waits
// for (its receives, and its sends if it overwrites them), and one more until
// its sends are posted; so only one thread at a time goes through the stages.
#ifndef MAYPOLE_WORKER_BACKEND_TCP_FLIGHT_H_
#define MAYPOLE_WORKER_BACKEND_TCP_FLIGHT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "worker/backend/exchange_plan.h"
#include "worker/backend/peer_link.h"
#include "worker/backend/tcp_backend.h"

namespace maypole::worker {

class TcpBackend::Flight : private TransferListener {
 public:
  // `lanes`: of the chunk, to each of `work.nodes`. `inbox`: at
  // least `plan.inbox_bytes`.
  Flight(TcpBackend* backend, Work work, ExchangePlan plan,
         const std::vector<Lane>& lanes, std::vector<std::byte> inbox);

  void Start();
  // Soon ends everything posted.
  void Cancel();

  bool failed() const { return failed_; }
  uint64_t bytes_sent() const { return sent_; }
  uint64_t bytes_received() const { return received_; }
  std::vector<std::byte>& inbox() { return inbox_; }

 private:
  // A send or receive.
  struct Part {
    uint32_t node = 0;
    uint32_t stage = 0;
    PeerLink* link = nullptr;
    uint64_t slot = 0;
    std::byte* data = nullptr;
    uint64_t bytes = 0;
    bool is_send = false;
    bool awaited = true;
  };

  void AddParts(uint32_t stage, bool are_sends, const std::vector<Lane>& lanes);
  void OnEnded(uint64_t part, const std::string& failure) override;
  void Post(size_t part);
  void Advance();
  void Reduce(const Stage& stage);
  void Release();

  TcpBackend* const backend_;
  const Work work_;
  const ExchangePlan plan_;
  std::vector<std::byte> inbox_;
  std::vector<Part> parts_;         // set by the constructor
  std::vector<size_t> sends_from_;  // by stage: the first of its parts
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
  size_t stage_ = 0;  // used by the thread that goes through the stages
  std::atomic<bool> failed_{false};
  std::vector<std::atomic<uint32_t>> awaited_;  // by stage
  std::atomic<uint32_t> open_{1};
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_TCP_FLIGHT_H_
