// Communicator: takes a client's operations. BoardCommunicator runs them on its
// node's board, LocalCommunicator in this process alone.
//
// Thread contract: all functions may be called by any thread.
#ifndef MAYPOLE_CLIENT_SESSION_COMMUNICATOR_H_
#define MAYPOLE_CLIENT_SESSION_COMMUNICATOR_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "client/engine/operation.h"
#include "client/memory/arena.h"
#include "common/status.h"
#include "common/system/fd.h"
#include "common/wire/session_messages.h"

namespace maypole {

// A timeout of Communicator::Await(): no time limit, but while data moves
// Await() returns kCancelled every 0.1 s.
inline constexpr int kWaitInterruptible = -2;

// Timeouts below kWaitInterruptible are limits after which the caller does
// nothing more in the job: until then the rank is as blocked as without a
// limit. Returns the limit in milliseconds; -1: none.
inline constexpr int LimitOfWait(int timeout_ms) {
  return timeout_ms >= 0                   ? timeout_ms
         : timeout_ms < kWaitInterruptible ? kWaitInterruptible - timeout_ms
                                           : -1;
}

// What a communicator must know about callbacks for operations that have ended.
struct Callbacks {
  std::atomic<int> unfinished{0};       // to be called, or running
  std::atomic<std::thread::id> thread;  // that calls them; none until it exists
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  // Starts all of the operations, or none if it returns an error. The caller
  // has checked their signatures and process sets. An empty `name` means
  // unnamed; the communicator then names it. A Control operation must be the
  // only one. Never blocks.
  virtual Status Start(
      std::span<const std::shared_ptr<Operation>> operations) = 0;

  // The input of an operation that was started with input_ready == false has
  // been written, or will never be (see RankCore).
  virtual void InputReady(const std::shared_ptr<Operation>& operation) = 0;
  virtual void InputFailed(const std::shared_ptr<Operation>& operation,
                           const Status& error) = 0;

  // Null if there is no set with this id.
  virtual std::shared_ptr<const ProcessSet> FindSet(uint32_t id) const = 0;

  // The caller wants the operation to end but calls neither Progress() nor
  // Await(): the operation must not be held back for fusion.
  virtual void Want(const Operation& operation) {
    static_cast<void>(operation);
  }

  // Passes the counts of callbacks: each unfinished one may start an operation.
  // Called once, before any operation.
  virtual void WatchCallbacks(std::shared_ptr<const Callbacks> callbacks) {
    static_cast<void>(callbacks);
  }

  // Moves data without waiting. The caller polls the operation.
  virtual void Progress(const Operation& operation) = 0;

  // Waits until operation.done is true, but at most timeout_ms (-1: no limit;
  // kWaitInterruptible, or less: see LimitOfWait). Returns kOk if it is done,
  // else kDeadlineExceeded or kCancelled (a signal came).
  virtual Status Await(const Operation& operation, int timeout_ms) = 0;

  // Notes that this rank uses the GPU. Returns the (global) rank of another
  // rank of this node that also uses it; -1 if none does.
  virtual int NoteGpu(std::string_view uuid) {
    static_cast<void>(uuid);
    return -1;
  }

  // Whether each rank of this node uses a GPU of its own; kUnknown while no GPU
  // is shared but not all ranks have called NoteGpu().
  enum class GpuUse { kUnknown, kOwn, kShared };
  virtual GpuUse UseOfGpus() const { return GpuUse::kUnknown; }
  // True if the executors of the job can connect GPUs.
  virtual bool executors_have_nccl() const { return false; }

  // False if such an operation of this set will not run on GPUs, so that a copy
  // to shared GPU memory would be wasted. `uuid`: of this rank's GPU.
  virtual bool MayRunOnGpus(const ProcessSet& set, Kind kind, DType dtype,
                            std::string_view uuid) const {
    static_cast<void>(set);
    static_cast<void>(kind);
    static_cast<void>(dtype);
    static_cast<void>(uuid);
    return false;
  }

  // Sends the request with the memory's descriptor (-1: none); keeps a copy of
  // the descriptor if it cannot be sent at once. kUnimplemented: there is no
  // executor.
  virtual Status SendGpuMemory(const session::GpuMemoryRequest& request,
                               int fd) {
    static_cast<void>(request);
    static_cast<void>(fd);
    return Status(Code::kUnimplemented, "this job has no executor");
  }
  // From now on calls `handler` with the replies, on any thread; it must not
  // call this object. When this returns, no earlier handler is running. Null:
  // replies are ignored.
  virtual void OnGpuMemoryReply(
      std::function<void(const session::GpuMemoryReply&)> handler) {
    static_cast<void>(handler);
  }
  // As OnGpuMemoryReply(), for the messages that connect this rank's GPU.
  virtual void OnConnectGpu(
      std::function<void(const session::ConnectGpu&)> handler) {
    static_cast<void>(handler);
  }
  // Calls `handler` once, soon after the epoch is over; otherwise as
  // OnGpuMemoryReply().
  virtual void OnEpochOver(std::function<void()> handler) {
    static_cast<void>(handler);
  }
  // Adjusts the number of the epoch's runs on this rank's GPU; while it is
  // above 0, the progress thread polls for the epoch's end even if no thread
  // waits.
  virtual void NoteGpuRuns(int more) { static_cast<void>(more); }
  // Adjusts the number of messages that are expected for the handlers above.
  virtual void ExpectMessages(int more) { static_cast<void>(more); }
  // Asks the executor to keep, find or drop a state (StateRequest), and waits
  // for its answer. `fd`: the state to keep, or -1. Sets *found (may be null)
  // to the state that was found. kUnimplemented: there is no executor.
  virtual Status CallForState(session::StateCall call, std::string_view name,
                              int fd, Fd* found) {
    static_cast<void>(call);
    static_cast<void>(name);
    static_cast<void>(fd);
    static_cast<void>(found);
    return Status(Code::kUnimplemented, "this job has no executor");
  }
  // Why the epoch is over; kOk while it is not.
  virtual Status EpochStatus() const { return Status(); }
  // Wakes the rank's threads: an operation can continue (StagedTensor).
  virtual void Wake() {}
  // The last rank to arrive reduces tensors of up to this many bytes at once
  // (client/engine/eager.h).
  virtual uint64_t eager_bytes() const { return 0; }

  // In an elastic job: Leave() will say that this process joins the next epoch,
  // so that the others wait for it.
  virtual void AnnounceReturn() {}
  // In an elastic job: this rank has trained to the end, or trains on.
  virtual void AnnounceFinished(bool /*finished*/) {}
  // Starts the job's timeline, which one rank's executor writes to a file; if
  // no timeline is on, this rank's executor writes it, to `path`. See
  // maypole_start_timeline() in client/maypole.h.
  virtual Status StartTimeline(const std::string& path, bool mark_cycles) = 0;
  // Stops the timeline that this rank has started, if it is on, and waits until
  // its file is complete.
  virtual Status StopTimeline() = 0;

  // Leaves the job. Pending operations end with an error; Start() fails from
  // now on.
  virtual void Leave() = 0;

  // True if every node has the same number of ranks.
  virtual bool homogeneous() const = 0;

  // In an elastic job: how many ranks want to enter or leave it.
  virtual uint32_t change_wanted() const { return 0; }

  // Null if the job has no arenas.
  virtual std::shared_ptr<Arena> arena() const { return nullptr; }
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_SESSION_COMMUNICATOR_H_
