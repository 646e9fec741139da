// FakeOperation: one enqueued operation of a fake Gpu's stream.
//
// Purpose: the same code does the work in both modes of the fake. Advance does
// what is possible now and returns whether the operation has finished.
//
// Thread contract: created under the scheduler's mutex; then Advance is called
// from one thread at a time, with the mutex in stepped mode and without it in
// threads mode. The virtual const methods may be called concurrently, under the
// mutex.
//
// Invariants: an operation accesses memory only in Advance, and only the pieces
// in reads() and writes(), which stay mapped until it has left its stream.
#ifndef MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_OPERATION_H_
#define MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_OPERATION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/backend/gpu/gpu.h"
#include "worker/backend/gpu/testing/fake_event.h"
#include "worker/backend/gpu/testing/fake_memory.h"

namespace maypole::gpu {

enum class Progress { kBlocked, kSome, kFinished };

// How fast an operation advances and what time it is; depends on the mode.
class Pace {
 public:
  virtual ~Pace() = default;
  // Returns how many of `left` bytes to do now, in whole units; at least one
  // unit, unless nothing is left.
  virtual uint64_t Share(uint64_t left, uint64_t unit) = 0;
  virtual int64_t Now() const = 0;  // nanoseconds
  // Returns true if this time has passed since `begin`. In stepped mode it may
  // advance the clock.
  virtual bool Elapsed(int64_t begin, int64_t nanoseconds) = 0;
};

class FakeOperation {
 public:
  virtual ~FakeOperation() = default;
  virtual Progress Advance(Pace& pace) = 0;
  // After kBlocked: what it waits for, such as "flag 0x10 >= 7 (it is 3)".
  virtual std::string WaitsFor() const { return ""; }
  // The memory whose change it waits for; empty if there is none.
  virtual Piece Awaits() const { return {}; }

  const std::vector<Piece>& reads() const { return reads_; }
  const std::vector<Piece>& writes() const { return writes_; }
  bool Writes(const Piece& piece) const;
  bool Touches(const Piece& piece) const;

  // An injected delay before the first Advance, in steps or nanoseconds.
  int64_t delay = 0;

 protected:
  std::vector<Piece> reads_, writes_;
};

using MadeOperation = absl::StatusOr<std::unique_ptr<FakeOperation>>;

// One function for each Gpu method that enqueues; MakeCopy also serves
// KernelCopy. They return the errors that fake_gpu.h lists.
MadeOperation MakeWriteValue(const FakeMemory& memory, Address flag,
                             uint64_t value);
MadeOperation MakeWaitValue(const FakeMemory& memory, Address flag,
                            uint64_t value, WaitFor what);
MadeOperation MakeCopy(const FakeMemory& memory, Address to, Address from,
                       uint64_t bytes);
MadeOperation MakeFill(const FakeMemory& memory, Address to, uint32_t word,
                       uint64_t words);
MadeOperation MakeReduce(const FakeMemory& memory, const Reduction& reduction);
MadeOperation MakeSpin(int blocks, int64_t nanoseconds);
MadeOperation MakeRecord(std::shared_ptr<FakeEvent> event, uint64_t record);
MadeOperation MakeWaitEvent(std::shared_ptr<FakeEvent> event, uint64_t record);

}  // namespace maypole::gpu

#endif  // MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_OPERATION_H_
