// Link: one rank's connection to its communicator's hub.
//
// Purpose: sends calls and waits for their results.
//
//   auto link = Link::Open(hub, rank, [] { /* a rank is gone */ });
//   const uint64_t id = link->Send({Kind::kAllReduce, ...}, input, bytes);
//   std::vector<std::byte> output;
//   if (link->Wait(id, &output)) ...   // false: Cancel() has been called
//
// Thread contract: any thread may call the functions. `lost` is called by the
// link's own thread, which keeps the link alive.
//
// Invariants: a Wait() ends with the result or by Cancel(), whatever happens to
// the hub: like NCCL's kernels, it waits for a dead rank forever.
#ifndef MAYPOLE_TESTS_GPU_FAKE_NCCL_LINK_H_
#define MAYPOLE_TESTS_GPU_FAKE_NCCL_LINK_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/fake_nccl/wire.h"

namespace maypole::nccl::fake {

class Link : public std::enable_shared_from_this<Link> {
 public:
  using Bytes = std::vector<std::byte>;

  // Null if there is no hub of this name.
  static std::shared_ptr<Link> Open(const std::string& hub, int rank,
                                    std::function<void()> lost);

  // Returns what Wait() needs.
  uint64_t Send(const Call& call, const void* input, size_t bytes);
  bool Wait(uint64_t id, Bytes* output);
  // The same for a call of the host: false also if a rank is gone and that is
  // an error (peer_death= of the configuration).
  bool WaitOfHost(uint64_t id, Bytes* output);

  // All waits end, now and later. The hub takes this rank for dead.
  void Cancel();
  // The same, but the connection stays for WaitUntilAllGone().
  void Abort();
  // Until all ranks have left, aborted or died, or the hub has.
  void WaitUntilAllGone();
  // The same, but the hub knows that this rank is finished.
  void Leave();

 private:
  Link(Fd socket, std::function<void()> lost)
      : socket_(std::move(socket)), lost_(std::move(lost)) {}
  bool WaitFor(uint64_t id, const bool& failed, Bytes* output);
  void Read();
  void TakeReply(uint64_t id, Bytes data);
  void SetFlag(bool& flag);

  const Fd socket_;
  const std::function<void()> lost_;
  std::mutex send_mutex_;  // held by who sends
  std::mutex mutex_;       // guards all below
  std::condition_variable changed_;
  std::map<uint64_t, std::optional<Bytes>> results_;
  uint64_t last_id_ = 0;
  bool cancelled_ = false;
  bool left_ = false;
  bool rank_lost_ = false;  // and that is an error
  bool all_gone_ = false;
};

}  // namespace maypole::nccl::fake

#endif  // MAYPOLE_TESTS_GPU_FAKE_NCCL_LINK_H_
