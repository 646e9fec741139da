// Client: the C++ API of libmaypole.
//
//   std::unique_ptr<maypole::Client> client;
//   maypole::Options options;
//   maypole::ReadOptions(getenv, &options);
//   maypole::Client::Join(options, &client);
//   maypole::Tensor x{DType::kFloat32, {4}, data, data};
//   int64_t h;
//   client->Allreduce("grad", x, {.op = Op::kAverage}, &h);
//   client->Wait(h, -1);
//   client->Release(h);
//
// Thread contract: all functions may be called by any thread. Memory of a
// tensor must stay valid, and its output untouched, until the operation ends.
#ifndef MAYPOLE_CLIENT_CLIENT_H_
#define MAYPOLE_CLIENT_CLIENT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "client/job.h"
#include "client/options.h"
#include "common/signature.h"

namespace maypole {

// A contiguous tensor. output may be input (in place); for an allgather it is
// null, for a broadcast it is used on every rank and input on the root.
struct Tensor {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  const void* input = nullptr;
  void* output = nullptr;
};

struct AllreduceOptions {
  Op op = Op::kAverage;
  double prescale = 1.0;   // inputs are multiplied by it; floats only
  double postscale = 1.0;  // results are multiplied by it; floats only
  bool awaited = false;    // Wait() comes next; see Client::Submit
};

// What an operation has delivered.
struct Result {
  void* data = nullptr;  // allgather: the library's, until Release()
  int64_t bytes = 0;
  int64_t first_dim = 0;  // allgather: sum over the ranks
};

struct Counters {
  std::atomic<int64_t> operations{0};
  std::atomic<int64_t> completed{0};
  std::atomic<int64_t> failed{0};
  std::atomic<int64_t> bytes{0};
  std::atomic<int64_t> arena_operations{0};
};

class Client {
 public:
  // Joins the job; blocks until all its ranks are there.
  static Status Join(const Options& options, std::unique_ptr<Client>* out);
  ~Client();

  const Options& options() const { return options_; }
  bool homogeneous() const { return job_->homogeneous(); }

  // An empty name: matched by order of submission within the kind. kOk means
  // submitted; *handle must be released some day.
  Status Allreduce(std::string_view name, const Tensor& tensor,
                   const AllreduceOptions& options, int64_t* handle);
  Status Allgather(std::string_view name, const Tensor& tensor,
                   int64_t* handle);
  Status Broadcast(std::string_view name, const Tensor& tensor, int root,
                   int64_t* handle);
  Status Barrier(int64_t* handle);  // to be awaited at once

  // The general form behind them. awaited: the caller calls Wait() next, so
  // the progress thread need not be woken for it (a hint).
  Status Submit(std::string_view name, const Signature& signature,
                const void* input, void* output, int64_t* handle,
                bool awaited = false);

  Status Poll(int64_t handle, bool* done);
  // The operation's outcome; kDeadlineExceeded and kCancelled (a signal) leave
  // it going.
  Status Wait(int64_t handle, int timeout_ms);
  Status GetResult(int64_t handle, Result* out);
  Status Release(int64_t handle);

  // See maypole_allocate() in client/maypole.h.
  Status Allocate(uint64_t bytes, void** memory) {
    return AllocateMemory(job_->arena(), bytes, memory);
  }
  static Status Free(void* memory) { return ReleaseMemory(memory); }

  void Leave() { job_->Leave(); }
  int64_t pending() const;
  size_t handles() const;  // not yet released
  bool Knows(int64_t handle) const { return Find(handle) != nullptr; }
  const Counters& counters() const { return counters_; }

  // In a forked child, instead of the destructor.
  void AbandonInChild();

 private:
  Client(const Options& options, std::unique_ptr<Job> job);
  std::shared_ptr<Operation> Find(int64_t handle) const;
  void Count(const Operation& operation);

  const Options options_;
  std::unique_ptr<Job> job_;
  mutable std::mutex mutex_;
  std::unordered_map<int64_t, std::shared_ptr<Operation>> handles_;
  Counters counters_;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_CLIENT_H_
