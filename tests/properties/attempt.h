// Attempt: one operation of a program on one rank, from its tensors to the
// check of what it has delivered.
//
// Outputs lie between guards of known bytes and at odd addresses, so a write
// outside is seen. After an error Freeze() notes what the memory holds; nobody
// may write there any more.
//
// Thread contract: one thread.
#ifndef MAYPOLE_TESTS_PROPERTIES_ATTEMPT_H_
#define MAYPOLE_TESTS_PROPERTIES_ATTEMPT_H_

#include <cstddef>
#include <memory>
#include <string>

#include "client/client.h"
#include "tests/properties/reference.h"
#include "tests/properties/spec.h"

namespace maypole::properties {

// Where tensors lie: the heap, or the client's arena. An arena that is full or
// absent gives heap memory, as a program's fall-back would.
class Memory {
 public:
  explicit Memory(Client* client) : client_(client) {}
  std::shared_ptr<std::byte[]> Allocate(size_t bytes, bool arena);

 private:
  Client* const client_;
};

class Attempt {
 public:
  Attempt(const OperationSpec& spec, int rank, int ranks, Random& random,
          Memory* memory);

  const OperationSpec& spec() const { return spec_; }
  bool submitted() const { return submitted_; }
  bool ended() const { return ended_; }
  const Status& status() const { return status_; }
  // It ended with the error that it should end with: of a mismatch.
  bool refused() const {
    return spec_.odd_one >= 0 && status_.code() == Code::kFailedPrecondition;
  }

  // A refused submission has ended with the refusal.
  void Submit(Client* client, bool awaited);
  void Poll(Client* client);
  void Wait(Client* client, int timeout_ms);

  // What is wrong with an operation that has ended; "" if nothing.
  std::string Check() const;
  // Notes the memory as it is now; then: what has changed since, or "".
  void Freeze();
  std::string Changed() const;

 private:
  void End(Client* client, Status status);
  std::byte* output() const { return block_.get() + offset_; }
  const std::byte* input() const {
    return spec_.in_place ? output() : input_.get();
  }
  std::string CheckResult() const;
  std::string CheckGuards() const;
  std::string CheckRefused() const;

  const OperationSpec spec_;
  const int rank_;
  const int ranks_;
  const Bytes values_;                  // of the input
  Bytes before_;                        // the block as it was submitted
  std::shared_ptr<std::byte[]> input_;  // out of place
  std::shared_ptr<std::byte[]> block_;  // guard, output, guard
  size_t block_bytes_ = 0;
  size_t offset_ = 0;
  size_t output_bytes_ = 0;

  bool submitted_ = false;
  bool ended_ = false;
  int64_t handle_ = 0;
  Status status_;
  Bytes gathered_;  // copy of an allgather's result
  Bytes frozen_;
};

}  // namespace maypole::properties

#endif  // MAYPOLE_TESTS_PROPERTIES_ATTEMPT_H_
