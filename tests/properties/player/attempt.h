// Attempt: one operation of a program on one rank, from its tensors to the
// check of what it has delivered.
//
// Outputs lie between guards of known bytes and at odd addresses, so a write
// outside is seen. After an error Freeze() notes what the memory holds; nobody
// may write there any more.
//
// Thread contract: one thread.
#ifndef MAYPOLE_TESTS_PROPERTIES_PLAYER_ATTEMPT_H_
#define MAYPOLE_TESTS_PROPERTIES_PLAYER_ATTEMPT_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/api/client.h"
#include "tests/properties/spec/reference.h"
#include "tests/properties/spec/spec.h"

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
  // The rank is one that the operation concerns.
  Attempt(const OperationSpec& spec, int rank, Random& random, Memory* memory);

  const OperationSpec& spec() const { return spec_; }
  bool submitted() const { return submitted_; }
  bool ended() const { return ended_; }
  const Status& status() const { return status_; }
  // True once: when it has ended and nobody has looked yet.
  bool TakeEnd() { return ended_ && !std::exchange(taken_, true); }
  // It ended with the error that it should end with.
  bool refused() const {
    return spec_.MustFail() && status_.code() == Code::kFailedPrecondition;
  }

  // A refused submission has ended with the refusal. process_set: the id.
  void Submit(Client* client, uint32_t process_set, bool awaited);
  // For a group: what to submit, and what came of it.
  Request MakeRequest(uint32_t process_set, bool awaited);
  void Submitted(const Status& status, int64_t handle);

  void Poll(Client* client);
  void Wait(Client* client, int timeout_ms);

  // What is wrong with an operation that has ended; "" if nothing.
  std::string Check() const;
  // Notes the memory as it is now; then: what has changed since, or "".
  void Freeze();
  std::string Changed() const;

 private:
  Status SubmitByName(Client* client, uint32_t process_set, bool awaited);
  void End(Client* client, Status status);
  void KeepResult(Client* client);
  // The library's memory brings the result.
  bool gathers() const { return Gathers(spec_.kind); }
  std::byte* output() const { return block_.get() + offset_; }
  const std::byte* input() const {
    return spec_.in_place ? output() : input_.get();
  }
  std::string CheckResult() const;
  std::string CheckGuards() const;
  std::string CheckRefused() const;
  std::string CheckMismatchText() const;

  const OperationSpec spec_;
  const int rank_;
  const Signature signature_;
  const Bytes values_;                  // of the input
  Bytes before_;                        // the block as it was submitted
  std::shared_ptr<std::byte[]> input_;  // out of place
  std::shared_ptr<std::byte[]> block_;  // guard, output, guard
  size_t block_bytes_ = 0;
  size_t offset_ = 0;
  size_t output_bytes_ = 0;
  bool by_name_ = false;  // submitted by the function of its kind

  bool submitted_ = false;
  bool ended_ = false;
  bool taken_ = false;
  int64_t handle_ = 0;
  Status status_;
  Result result_;  // its data are in gathered_
  Bytes gathered_;
  Bytes frozen_;
};

}  // namespace maypole::properties

#endif  // MAYPOLE_TESTS_PROPERTIES_PLAYER_ATTEMPT_H_
