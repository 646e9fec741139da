// Operation: one submitted collective operation, from its submission to its
// end.
//
// Thread contract: the fields above `done` are written by the submitting thread
// before it passes the operation to the progress engine (under RankCore's
// mutex), and after that by the driver thread. `done` is stored last (release);
// after that everything is constant.
#ifndef MAYPOLE_CLIENT_ENGINE_OPERATION_H_
#define MAYPOLE_CLIENT_ENGINE_OPERATION_H_

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/board/gpu_place.h"
#include "common/board/urgent.h"
#include "common/process_set.h"
#include "common/status.h"
#include "common/wire/signature.h"

namespace maypole {

struct FreeMemory {
  void operator()(std::byte* p) const { std::free(p); }
};

struct Unmap {
  uint64_t bytes = 0;
  void operator()(std::byte* p) const { munmap(p, bytes); }
};

struct Operation;

// Operations that this rank's own GPU executes together with those of other
// ranks (RunSite::kRanks).
class RankRun {
 public:
  enum class State {
    kWaiting,
    kEnqueued,  // all of it is on the GPU's stream
    kEnded,     // the results are there
  };

  virtual ~RankRun() = default;
  // After an error, in any state, nothing of the run is under way, and the
  // tensors' contents are undefined. Does not wait.
  virtual Status Poll(State* state) = 0;
};

// A rank's part of such a run.
struct RankPart {
  uint32_t communicator = 0;
  uint32_t position = 0;  // of the rank, in the process set
  // Allgather, alltoall: all members' rows, as for ResultsHaveRoom()
  // (common/gather_room.h).
  std::vector<int64_t> rows;
};

// What represents a tensor on a GPU: host memory, or GPU memory that this rank
// shares with the executor. Only the driver thread calls the functions.
class StagedTensor {
 public:
  virtual ~StagedTensor() = default;
  // Memory for the result of an allgather or alltoall; it lives as long as this
  // object. Null if there is none.
  virtual std::byte* GatherInto(uint64_t bytes) = 0;
  // The operation will run on the host, but its input lies on the GPU
  // (`gpu_place`): begins to copy it, or checks whether the copy is done. kOk
  // with *done: the operation's input and output are host memory now. Does not
  // wait. After an error the input is lost.
  virtual Status BringToHost(Operation* operation, bool* done) = 0;
  // The result is on the GPU. The executors have put it `offset` bytes behind
  // `gpu_place`; or this rank's run has put it where the object knows (offset
  // 0). Called before the operation ends.
  virtual void ResultOnGpu(uint64_t offset) = 0;
  // Begins to execute these operations (the first is this object's) as a part
  // of the communicator, after all that were begun before. An allgather or
  // alltoall is the only operation, and its result fits in `gpu_room`. Returns
  // null if this rank does not call NCCL itself.
  virtual std::shared_ptr<RankRun> BeginOnRank(
      const RankPart& part, const std::vector<Operation*>& operations) {
    static_cast<void>(part);
    static_cast<void>(operations);
    return nullptr;
  }
};

// A callback for an operation's end; it keeps the operation alive until then.
struct Completion {
  std::shared_ptr<const Operation> operation;
  std::function<void(const Operation&)> call;
};

// Where completions go when their operations have ended.
class CompletionQueue {
 public:
  virtual ~CompletionQueue() = default;
  // Any thread, which may hold locks: does not wait, and does not run the
  // callback.
  virtual void Push(std::unique_ptr<Completion> completion) = 0;
};

// The kinds of operations that have no tensor; kNone: it has one.
enum class Control : uint8_t { kNone, kJoin, kSetRequest };

// When an operation went from one phase to the next, in nanoseconds by the
// rank's clock; 0: not (yet). Kept only for operations that were submitted
// while the job's timeline was on (Operation::recorded()).
struct Moments {
  int64_t submitted = 0;
  int64_t arrived = 0;  // it was ready on this rank
  int64_t begun = 0;    // this rank has begun to move its data
  int64_t ended = 0;
  // The name's operations are counted from 1 on all ranks alike.
  uint32_t number = 0;
};

struct Operation {
  int64_t handle = 0;
  std::string name;
  Signature signature;
  std::shared_ptr<const ProcessSet> set;
  const std::byte* input = nullptr;
  // Null for allgather and alltoall (see `gathered`), and if the result is not
  // wanted.
  std::byte* output = nullptr;
  std::vector<int64_t> splits;  // alltoall: one for each rank of the set

  Control control = Control::kNone;
  // Requests of process sets: the members, or the id of the set to remove.
  std::vector<int> ranks;
  bool by_members = false;  // only the set's members request it
  uint32_t removes = 0;
  int64_t answer = 0;  // join: the rank that joined last; request: the set's id

  // This rank has joined, and RankCore has submitted the operation for it.
  // `neutral` owns the input, which changes no result; there is no output.
  bool stands_in = false;
  std::unique_ptr<std::byte, Unmap> neutral;

  // False while the input is still being written (by a GPU): the operation is
  // submitted, which fixes its name and its number, but this rank arrives only
  // when RankCore::InputReady() has been called. Changed under RankCore's
  // mutex.
  bool input_ready = true;
  // Null: the tensor is in host memory. Otherwise input and output lie in the
  // staged tensor's memory (client/gpu/staging.h).
  std::shared_ptr<StagedTensor> staged;

  // The caller waits for it right away, so no other thread need be woken.
  bool awaited = false;
  // A thread has waited for the operation or polled it; never reset.
  mutable std::atomic<bool> wanted{false};
  // A thread has slept while waiting for the operation; for the metrics.
  mutable std::atomic<bool> slept_for{false};

  // The tensor's offset in this rank's arena, + 1; 0: it is not in the arena.
  uint64_t arena = 0;
  bool ran_in_arena = false;
  bool ran_on_gpu = false;  // executors, or ranks, have executed it there

  // Where the tensor lies in GPU memory that this rank shares with the
  // executor, as packed by PackGpuPlace(); kNoGpuPlace: nowhere. Constant once
  // submitted. If all members have submitted a place (see Board::IsOnGpu), and
  // there is room for all results, executors execute the operation there.
  // Otherwise it runs on the host.
  uint64_t gpu_place = kNoGpuPlace;
  // Allgather, alltoall: bytes reserved for the result, at GpuResultAt() or, if
  // this rank calls NCCL itself, anywhere.
  uint64_t gpu_room = 0;

  uint32_t slot = 0;
  uint32_t generation = 0;

  // The result of an allgather or alltoall, unless `staged` holds it; allocated
  // when all ranks' sizes are known.
  std::unique_ptr<std::byte, FreeMemory> gathered;
  uint64_t gathered_bytes = 0;
  int64_t gathered_rows = 0;
  std::vector<int64_t> received;  // alltoall: rows from each rank of the set

  // Guarded by RankCore's mutex.
  Moments moments;

  Status status;
  std::atomic<bool> done{false};

  // Passes the completion to the queue when the operation ends, or at once if
  // it has ended. False: another one still waits for the end. Calls for one
  // operation must not overlap.
  bool WhenDone(std::shared_ptr<CompletionQueue> queue,
                std::unique_ptr<Completion> c) {
    if (completion_.load() == kWaitsForEnd) return false;
    waiting_ = std::move(c);
    queue_ = std::move(queue);
    uint8_t none = kNoCompletion;
    if (!completion_.compare_exchange_strong(none, kWaitsForEnd)) {
      PassCompletion();  // it has ended
    }
    return true;
  }
  // The last step of an operation's end: publishes `status` and all results.
  // The caller keeps the operation alive.
  void SetDone() {
    done.store(true, std::memory_order_release);
    uint8_t none = kNoCompletion;
    if (!completion_.compare_exchange_strong(none, kEnded)) PassCompletion();
  }

  bool recorded() const { return moments.submitted != 0; }

  void SetGathered(uint64_t bytes, int64_t rows) {
    gathered_bytes = bytes;
    gathered_rows = rows;
  }
  // Makes `output` memory for a gathered result. Returns false if there is no
  // memory.
  bool MakeGathered(uint64_t bytes, int64_t rows) {
    SetGathered(bytes, rows);
    output = staged == nullptr ? nullptr : staged->GatherInto(bytes);
    if (output != nullptr) return true;
    gathered.reset(static_cast<std::byte*>(std::malloc(bytes > 0 ? bytes : 1)));
    output = gathered.get();
    return output != nullptr;
  }

  // Bytes of this rank's result; for reducescatter, of the whole reduced
  // tensor.
  uint64_t result_bytes() const {
    return Gathers(signature.kind) ? gathered_bytes : signature.Bytes();
  }
  bool in_place() const { return output != nullptr && output == input; }
  // The factor by which the input is multiplied before the reduction.
  double prescale() const { return stands_in ? 1.0 : signature.prescale; }
  Urgency urgency() const {
    if (awaited) return Urgency::kImmediate;
    return wanted.load() ? Urgency::kAwaited : Urgency::kNone;
  }
  // For example "allreduce 'loss'".
  std::string Title() const {
    if (control != Control::kNone) return name;  // "join", ...
    std::string title = std::string(Name(signature.kind)) + " '" + name + "'";
    if (signature.process_set != 0) {
      title += " of process set " + std::to_string(signature.process_set);
    }
    return title;
  }
  // Returns the error; its message begins with the operation's title unless it
  // names the operation already.
  Status Explain(const Status& error) const {
    // With the kind, because operations of other kinds may have the same name.
    const std::string named =
        control != Control::kNone
            ? "'" + name + "'"
            : std::string(maypole::Name(signature.kind)) + " '" + name + "'";
    if (error.message().find(named) != std::string::npos) return error;
    return Status(error.code(), Title() + ": " + error.message());
  }

 private:
  // SetDone() or WhenDone(), whichever comes later, passes the completion.
  enum : uint8_t { kNoCompletion, kWaitsForEnd, kEnded };
  void PassCompletion() {
    const std::shared_ptr<CompletionQueue> queue = std::move(queue_);
    std::unique_ptr<Completion> completion = std::move(waiting_);
    completion_.store(kEnded);  // WhenDone() may set both again
    queue->Push(std::move(completion));
  }

  std::atomic<uint8_t> completion_{kNoCompletion};
  std::unique_ptr<Completion> waiting_;
  std::shared_ptr<CompletionQueue> queue_;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_ENGINE_OPERATION_H_
