// UcxFabric: links to the other nodes of an epoch over UCX (ucx.h), that is
// over InfiniBand, RoCE, shared memory or whatever UCX finds.
//
//   absl::StatusOr<std::unique_ptr<UcxFabric>> ucx = UcxFabric::Open(options);
//   ... (*ucx)->address() travels to the other nodes, theirs to this one ...
//   (*ucx)->AddPeer(1, their_address);
//   (*ucx)->Start(timeout, stopped);
//   (*ucx)->LinkTo(1)->Receive(slot, data, bytes, tag);
//
// A message is a tagged send; its tag is the sending node and the slot. A
// thread makes progress, and sleeps on UCX's descriptor while nothing happens.
// It has no copies of its own: UCX sends small messages at once and keeps those
// whose receives are not posted; of greater ones it transfers the bytes when
// the receive is posted.
//
// UCX neither encrypts nor asks who sends: who reaches its ports can disturb a
// job. TcpBackend exchanges the addresses over authenticated connections, and
// uses no UCX where it encrypts.
//
// Failures: UCX reports a link as failed when the peer's process ends or its
// fabric is lost, also when the peer closes it after a failure elsewhere, which
// is not the peer's fault. So failures are reported only after
// `failure_grace`, in which the connection of the executors' messages tells of
// a peer that has ended, and the coordinator of another node; earlier when
// Cancel() or Close() says that it no longer matters. A send cannot be
// cancelled in UCX, nor a receive that has begun: to end them the link is
// closed.
//
// Thread contract: Open, AddPeer, Start and the destructor from one thread;
// links and Close() from any thread. Listeners and `on_failed` are called
// without a lock, by the fabric's thread or the one that posts.
#ifndef MAYPOLE_WORKER_BACKEND_UCX_UCX_FABRIC_H_
#define MAYPOLE_WORKER_BACKEND_UCX_UCX_FABRIC_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/peer_link.h"
#include "worker/backend/ucx/ucx.h"

namespace maypole::worker {

struct UcxFabricOptions {
  uint32_t self = 0;
  uint32_t nodes = 2;
  std::chrono::milliseconds failure_grace{1500};
  // Called once for a link that has failed, unless its failure no longer
  // matters.
  std::function<void(uint32_t node, const std::string& why)> on_failed = {};
};

struct UcxFailure {
  uint32_t node = 0;
  std::string why;
};

class UcxFabric {
 public:
  static absl::StatusOr<std::unique_ptr<UcxFabric>> Open(
      UcxFabricOptions options);
  // Closes. To be called when all that was posted has ended.
  ~UcxFabric();
  UcxFabric(const UcxFabric&) = delete;
  UcxFabric& operator=(const UcxFabric&) = delete;

  const std::string& address() const { return address_; }
  void AddPeer(uint32_t node, std::string address);
  // Connects to all peers, which have to do the same, and waits until each has
  // answered. Returns one of which this fails, or which has not answered within
  // `timeout`; stopped() ends the wait.
  std::optional<UcxFailure> Start(std::chrono::milliseconds timeout,
                                  const std::function<bool()>& stopped);
  // Null for a node that is no peer.
  PeerLink* LinkTo(uint32_t node) const;

  // Soon ends all that is posted, as failures; what is posted later fails at
  // once.
  void Close();

 private:
  using Clock = std::chrono::steady_clock;
  class Greetings;
  class UcxLink;
  struct Request;
  struct Ended {
    TransferTag tag;
    std::string failure;
  };
  using Lock = std::unique_lock<std::mutex>;

  UcxFabric(UcxFabricOptions options, const Ucx* ucx);
  absl::Status MakeWorker();
  absl::Status Connect(UcxLink* link);
  std::string Text(ucs_status_t status) const;
  Lock LockForCall();
  // After a call that leaves UCX something to do.
  void WakeForProgress();
  // UCX calls these within its own functions, so under the mutex.
  static void OnSent(void* handle, ucs_status_t status, void* request);
  static void OnReceived(void* handle, ucs_status_t status,
                         const ucp_tag_recv_info_t* info, void* request);
  static void OnLinkFailed(void* link, ucp_ep_h, ucs_status_t status);
  static void OnClosed(void* handle, ucs_status_t, void* fabric);

  // These are for whoever has the mutex.
  void Complete(Request* request, const std::string& failure);
  void AddFailure(Ended ended);
  // Ends what is posted on the link, or lets UCX end it soon.
  void Fail(UcxLink* link, const std::string& why);
  // Null: of all listeners.
  void CancelReceives(UcxLink* link, const TransferListener* listener);
  void CloseEndpoint(UcxLink* link);
  // Whether UCX no longer uses anything of the links that have failed.
  bool IsOver() const;
  // Ends what UCX does not end.
  void GiveUp();

  void Run();

  const UcxFabricOptions options_;
  const Ucx* const ucx_;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;  // UCX's
  std::string address_;
  std::unique_ptr<Greetings> greetings_;
  std::atomic<int> calling_{0};  // threads that want the mutex, but the own one

  std::mutex mutex_;  // guards what follows, and all calls of UCX
  std::vector<std::unique_ptr<UcxLink>> links_;  // by node; set by AddPeer
  // The request that is being posted; null: UCX has called back for it.
  Request* posting_ = nullptr;
  std::string posted_failure_;  // of that one, then
  // What UCX says of links, until the thread reads it.
  std::vector<std::pair<UcxLink*, ucs_status_t>> reported_;
  std::vector<Ended> ended_;
  std::vector<Ended> failed_;  // held back until they are due
  std::vector<std::pair<uint32_t, std::string>> failed_links_;  // likewise
  Clock::time_point first_failure_;
  bool failures_matter_ = true;    // false after Cancel() or Close()
  std::vector<UcxLink*> failing_;  // that have failed
  int closing_ = 0;                // endpoints that UCX is closing
  bool closed_ = false;
  Clock::time_point closed_since_;
  bool leaks_ = false;  // UCX has not let go of something in time

  std::thread thread_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_UCX_UCX_FABRIC_H_
