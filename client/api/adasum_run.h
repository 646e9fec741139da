// AdasumRun: the Adasum of some tensors, made of three operations.
//
// Purpose: an Adasum (common/reduce/adasum.h) needs no exchange of intermediate
// tensors, so a rank's client builds it from operations that executors have:
//
//   1. alltoall: each rank gets one slice of every rank's tensors;
//   2. allreduce: sums the slices' few dot products, in float64;
//   3. each rank computes the factors and its slice of the result;
//   4. allgather: the slices of the result.
//
// Steps 1 and 4 together move the data of one allreduce, for any number of
// ranks. One rank computes each element of the result, so it is bit-equal on
// all. The tensors of one call that have one dtype travel together; each has
// its own factors. The operations are named after the first tensor, with
// ".adasum" appended.
//
//   auto run = std::make_shared<AdasumRun>(communicator, completions, me, ops);
//   std::shared_ptr<Operation> first;
//   run->Prepare(&first);            // then Communicator::Start({first})
//   run->Begin();                    // from now on it runs by itself
//   run->Await(timeout_ms);          // ops[0]->done is true then
//
// One more matrix in step 2 tells the ranks whether all take part with tensors
// of the same shapes: each rank puts a number that depends on its shapes on the
// diagonal; a rank that has joined puts 0 there.
//
// Thread contract: all functions may be called by any thread, Prepare() before
// the others. Steps 2 to 4 run on the completion thread, so a callback that
// waits for an Adasum never returns.
#ifndef MAYPOLE_CLIENT_API_ADASUM_RUN_H_
#define MAYPOLE_CLIENT_API_ADASUM_RUN_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "client/engine/operation.h"
#include "client/session/communicator.h"
#include "common/status.h"

namespace maypole {

inline bool IsAdasum(const Signature& s) {
  return s.op == Op::kAdasum && s.kind == Kind::kAllreduce;
}

class AdasumRun : public std::enable_shared_from_this<AdasumRun> {
 public:
  using Operations = std::vector<std::shared_ptr<Operation>>;

  // `operations`: allreduces of one dtype, process set and pair of factors,
  // each with a name. They are not started, but this object ends them.
  // `position`: of this rank in the process set.
  AdasumRun(std::shared_ptr<Communicator> communicator,
            std::shared_ptr<CompletionQueue> completions, int position,
            Operations operations);

  // Sets *first to the operation of step 1, which the caller starts. After an
  // error nothing was done.
  Status Prepare(std::shared_ptr<Operation>* first);
  // The first operation was started.
  void Begin();
  // The input of an operation that had none ready (Operation::input_ready) has
  // been written, or will never be.
  void InputSettled(const Status& error);

  // Moves data without waiting.
  void Progress();
  // As Communicator::Await(); waits until the operations have ended.
  Status Await(int timeout_ms);

 private:
  std::shared_ptr<Operation> MakePart(Kind kind, DType dtype,
                                      std::vector<int64_t> shape) const;
  void PackInputs();
  void Follow(std::shared_ptr<Operation> part);
  void StartPart(const std::shared_ptr<Operation>& part);
  void OnPart(const Operation& part);
  void SumProducts(const Operation& exchange);
  void GatherResults();
  void UnpackResults(const Operation& gathered);
  Status CheckShapes() const;
  Status Joined() const;
  void End(const Status& status);

  const std::shared_ptr<Communicator> communicator_;
  const std::shared_ptr<CompletionQueue> completions_;
  const size_t me_;
  Operations operations_;
  const Signature signature_;  // of the first
  const std::shared_ptr<const ProcessSet> set_;
  const size_t ranks_;
  const size_t size_;  // of an element
  const std::string name_;

  // slices_[t][r]: elements of rank r's slice of tensor t; totals_[r]: of all.
  std::vector<std::vector<int64_t>> slices_;
  std::vector<int64_t> totals_;
  std::atomic<size_t> awaited_inputs_{0};
  std::atomic<bool> input_failed_{false};
  std::weak_ptr<Operation> first_;

  std::unique_ptr<std::byte, FreeMemory> packed_;  // null: nothing to pack
  std::shared_ptr<const Operation> exchange_;      // owns the rows
  std::vector<const std::byte*> rows_;  // this rank's slices, by rank
  std::vector<double> products_;  // a matrix per tensor, and one of shapes
  std::unique_ptr<std::byte, FreeMemory> result_;  // this rank's slices

  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Operation> part_;  // the last one that was started
  bool over_ = false;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_API_ADASUM_RUN_H_
