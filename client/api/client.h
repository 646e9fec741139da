// Client: the C++ API of libmaypole. client/maypole.h describes the operations
// in full.
//
//   std::unique_ptr<maypole::Client> client;
//   maypole::RankOptions options;
//   maypole::ReadRankOptions(getenv, &options);
//   maypole::Client::Join(options, &client);
//   maypole::Tensor x{DType::kFloat32, {4}, data, data};
//   int64_t h;
//   client->Allreduce("grad", x, {.op = Op::kAverage}, &h);
//   client->Wait(h, -1);
//   client->Release(h);
//
// Thread contract: all functions may be called by any thread. The memory of a
// tensor must stay valid, and the caller must not touch its output, until the
// operation has ended.
//
// Errors: the codes have the meaning that maypole.h gives them.
#ifndef MAYPOLE_CLIENT_API_CLIENT_H_
#define MAYPOLE_CLIENT_API_CLIENT_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "client/api/adasums.h"
#include "client/api/completion_thread.h"
#include "client/bootstrap/rank_options.h"
#include "client/gpu/staging.h"
#include "client/gpu/user_gpu_memory.h"
#include "client/session/communicator.h"
#include "common/wire/signature.h"

namespace maypole {

// A contiguous tensor. output may equal input (in place). Allgather and
// alltoall: output is null. Broadcast: output is used on every rank, input only
// on the root. Reducescatter: output receives this rank's rows of the result.
struct Tensor {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  const void* input = nullptr;
  void* output = nullptr;
};

// Options of allreduce and reducescatter.
struct ReduceOptions {
  Op op = Op::kAverage;
  double prescale = 1.0;   // factor for the inputs; not for bool
  double postscale = 1.0;  // factor for the result; not for bool
  bool awaited = false;    // see Request::awaited
  uint32_t process_set = 0;
};
using AllreduceOptions = ReduceOptions;

// The general form of an operation.
struct Request {
  std::string name;  // empty: unnamed
  Signature signature;
  const void* input = nullptr;
  void* output = nullptr;
  // A hint: the caller calls Wait() next, so the progress thread need not be
  // woken.
  bool awaited = false;
  // Alltoall: rows for each rank of the process set; empty: equal parts.
  std::vector<int64_t> splits = {};
  // If signature.device is kGpu: input and output are addresses on a CUDA
  // device, and the input is what the stream's work so far leaves there.
  cuda::CUstream stream = nullptr;
};

// The result of an operation that has ended successfully.
struct Result {
  // Allgather, alltoall: memory of the library, valid until Release().
  void* data = nullptr;
  int64_t bytes = 0;
  // Number of rows; for a join the rank that joined last, for a request of a
  // process set the set's id.
  int64_t first_dim = 0;
  // Alltoall: rows from each rank of the process set.
  std::vector<int64_t> received_splits = {};
};

struct Counters {
  std::atomic<int64_t> operations{0};
  std::atomic<int64_t> completed{0};
  std::atomic<int64_t> failed{0};
  std::atomic<int64_t> bytes{0};
  std::atomic<int64_t> arena_operations{0};
  std::atomic<int64_t> gpu_operations{0};
};

class Client {
 public:
  // Joins the job; blocks until all its ranks have joined.
  static Status Join(const RankOptions& options, std::unique_ptr<Client>* out);
  ~Client();

  // In an elastic job these hold this rank's numbers in the epoch; after
  // LeaveToReturn() pass them to Join() to join the next epoch.
  const RankOptions& options() const { return options_; }
  // In an elastic job: how many ranks want to enter or leave the job. While it
  // is not 0, every rank should leave at a convenient moment and join again.
  uint32_t change_wanted() const { return communicator_->change_wanted(); }
  bool homogeneous() const { return communicator_->homogeneous(); }

  // Operations without a name (empty) are matched by order of submission within
  // process set and kind. kOk means that the operation was submitted; the
  // caller must eventually release *handle.
  Status Allreduce(std::string_view name, const Tensor& tensor,
                   const ReduceOptions& options, int64_t* handle);
  Status Reducescatter(std::string_view name, const Tensor& tensor,
                       const ReduceOptions& options, int64_t* handle);
  Status Allgather(std::string_view name, const Tensor& tensor, int64_t* handle,
                   uint32_t process_set = 0);
  // splits: rows for each rank of the set; empty: equal parts.
  Status Alltoall(std::string_view name, const Tensor& tensor,
                  std::vector<int64_t> splits, int64_t* handle,
                  uint32_t process_set = 0);
  Status Broadcast(std::string_view name, const Tensor& tensor, int root,
                   int64_t* handle, uint32_t process_set = 0);
  // The caller should call Wait() at once.
  Status Barrier(int64_t* handle, uint32_t process_set = 0);
  // This rank has no more inputs; see maypole.h.
  Status Join(int64_t* handle);

  // The general forms. A group is submitted whole or not at all.
  Status Submit(Request request, int64_t* handle);
  Status SubmitGroup(std::vector<Request> requests, int64_t* handles);
  Status Submit(std::string_view name, const Signature& signature,
                const void* input, void* output, int64_t* handle,
                bool awaited = false) {
    return Submit({std::string(name), signature, input, output, awaited},
                  handle);
  }

  // All ranks of the job must call these in the same order; see maypole.h. The
  // result's first_dim is the set's id.
  Status AddProcessSet(std::vector<int> ranks, int64_t* handle,
                       bool by_members = false);
  Status RemoveProcessSet(uint32_t id, int64_t* handle);
  // The set's ranks, ascending; empty if there is no such set.
  std::vector<int> ProcessSetRanks(uint32_t id) const;

  Status Poll(int64_t handle, bool* done);
  // Returns the operation's outcome. After kDeadlineExceeded and kCancelled (a
  // signal) the operation is still pending. Timeouts as in maypole.h.
  Status Wait(int64_t handle, int timeout_ms);
  // Calls `done` with the operation's outcome when it has ended, on this
  // client's completion thread; see maypole_on_done() in maypole.h.
  Status OnDone(int64_t handle, std::function<void(const Status&)> done);
  Status GetResult(int64_t handle, Result* out);
  // For an operation on CUDA tensors that has ended successfully: copies the
  // result to `to` (null: to the output) on the stream; see
  // maypole_copy_result().
  Status CopyResult(int64_t handle, cuda::CUstream stream, void* to);
  Status Release(int64_t handle);

  // How many bytes this rank's arena can hold; 0 if it has none.
  uint64_t arena_limit() const {
    const auto arena = communicator_->arena();
    return arena == nullptr ? 0 : arena->bytes();
  }

  // Host memory that stands for CUDA tensors, in use or kept for the next ones.
  uint64_t staging_bytes() const;

  // See maypole_allocate() in client/maypole.h.
  Status Allocate(uint64_t bytes, void** memory) {
    return AllocateMemory(communicator_->arena(), bytes, memory);
  }
  static Status Free(void* memory) { return ReleaseMemory(memory); }
  // See maypole_allocate_on_gpu() and maypole_free_on_gpu() there.
  Status AllocateOnGpu(uint64_t bytes, int gpu, void** memory);
  static Status FreeOnGpu(void* memory,
                          std::span<const cuda::CUstream> streams) {
    return FreeUserGpuMemory(reinterpret_cast<cuda::CUdeviceptr>(memory),
                             streams);
  }

  // See maypole_keep_state(), maypole_find_state(), maypole_drop_state().
  Status KeepState(std::string_view name, int fd) {
    return communicator_->CallForState(session::StateCall::kKeep, name, fd,
                                       nullptr);
  }
  Status FindState(std::string_view name, Fd* found) {
    return communicator_->CallForState(session::StateCall::kFind, name, -1,
                                       found);
  }
  Status DropState(std::string_view name) {
    return communicator_->CallForState(session::StateCall::kDrop, name, -1,
                                       nullptr);
  }

  // See maypole_start_timeline() and maypole_stop_timeline().
  Status StartTimeline(const std::string& path, bool mark_cycles) {
    return communicator_->StartTimeline(path, mark_cycles);
  }
  Status StopTimeline() { return communicator_->StopTimeline(); }

  // Leaves the job for good. Pending operations end with an error. Returns
  // after all callbacks given to OnDone() have run, unless one of them calls
  // this.
  void Leave();
  // In an elastic job: leaves the epoch and announces that this process will
  // join the next one (with options()), so that the others wait for it.
  void LeaveToReturn() {
    communicator_->AnnounceReturn();
    Leave();
  }
  // In an elastic job: see maypole_set_finished() in client/maypole.h.
  void SetFinished(bool finished) { communicator_->AnnounceFinished(finished); }
  int64_t pending() const;
  size_t handles() const;  // number of handles that are not released
  bool Knows(int64_t handle) const { return Find(handle) != nullptr; }
  const Counters& counters() const { return counters_; }

  // For a forked child, which calls this instead of the destructor.
  void AbandonInChild();

 private:
  Client(const RankOptions& options,
         std::unique_ptr<Communicator> communicator);
  Status SubmitReduction(std::string_view name, Kind kind, const Tensor& tensor,
                         const ReduceOptions& options, int64_t* handle);
  Status MakeOperation(Request request, Operation* operation) const;
  Status FindSet(Operation* operation) const;
  Status CompleteSplits(Operation* operation) const;
  Status CheckBuffers(const Operation& operation) const;
  uint64_t InputBytes(const Operation& operation) const;
  uint64_t OutputBytes(const Operation& operation) const;
  Status Stage(Operation* operation, cuda::CUstream stream);
  Status OpenCompletions(std::shared_ptr<CompletionThread>* out);
  Status OpenStaging(std::shared_ptr<Staging>* out);
  Status StartAll(std::span<const std::shared_ptr<Operation>> operations,
                  int64_t* handles);
  std::shared_ptr<Operation> Find(int64_t handle) const;
  void Count(const Operation& operation);

  const RankOptions options_;
  const std::shared_ptr<Communicator> communicator_;
  mutable std::mutex mutex_;
  std::unordered_map<int64_t, std::shared_ptr<Operation>> handles_;
  Adasums adasums_;
  std::mutex open_mutex_;             // held while the driver is opened
  std::shared_ptr<Staging> staging_;  // null: no CUDA tensor was submitted
  std::shared_ptr<CompletionThread> completions_;  // null: none was needed
  const std::shared_ptr<Callbacks> callbacks_ = std::make_shared<Callbacks>();
  Counters counters_;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_API_CLIENT_H_
