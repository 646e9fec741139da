// Attempt: one operation of a program on one rank, from the creation of its
// tensors to the check of its result.
//
// Outputs lie between guards of known bytes and at odd addresses, so a write
// outside is detected. After an error Freeze() records the contents of the
// memory, which must not change any more.
//
// A tensor on a GPU is written in the order of a random stream at its
// submission, and its result is taken in the order of another stream. The
// memory described above is then a copy of the GPU's, read back at the end.
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
#include "tests/properties/player/gpu_memory.h"
#include "tests/properties/spec/reference.h"
#include "tests/properties/spec/spec.h"

namespace maypole::properties {

// Memory for tensors: the heap, or the client's arena. If the arena is full or
// absent, it returns heap memory, as the fall-back of a program would. With a
// GPU, the tensors that would be in the arena are there.
class Memory {
 public:
  explicit Memory(Client* client, const GpuMemory* gpu = nullptr)
      : client_(client), gpu_(gpu) {}
  std::shared_ptr<std::byte[]> Allocate(size_t bytes, bool arena);
  const GpuMemory* gpu() const { return gpu_; }

 private:
  Client* const client_;
  const GpuMemory* const gpu_;
};

class Attempt {
 public:
  // The operation concerns this rank.
  Attempt(const OperationSpec& spec, int rank, Random& random, Memory* memory);

  const OperationSpec& spec() const { return spec_; }
  bool submitted() const { return submitted_; }
  bool ended() const { return ended_; }
  const Status& status() const { return status_; }
  // True once, at the first call after it has ended.
  bool TakeEnd() { return ended_ && !std::exchange(taken_, true); }
  // It ended with the expected error.
  bool refused() const {
    return spec_.MustFail() && status_.code() == Code::kFailedPrecondition;
  }

  // A refused submission has ended with the refusal. process_set: the id.
  void Submit(Client* client, uint32_t process_set, bool awaited);
  // For a group: the operation to submit, and the result of submitting it.
  Request MakeRequest(uint32_t process_set, bool awaited);
  void Submitted(const Status& status, int64_t handle);

  void Poll(Client* client);
  void Wait(Client* client, int timeout_ms);
  // Asks for a callback at its end, and waits for that call.
  void AskForCallback(Client* client);
  void WaitForCallback(Client* client, int timeout_ms);

  // Describes what is wrong with an ended operation; "" if nothing is.
  std::string Check() const;
  // Freeze() records the memory's contents; Changed..() describes changes
  // since.
  void Freeze();
  std::string Changed() const;

 private:
  Status SubmitByName(Client* client, uint32_t process_set, bool awaited);
  void End(Client* client, Status status);
  struct Callback;
  void KeepResult(Client* client);
  void PutOnGpu();
  void TakeFromGpu(Client* client);
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
  std::shared_ptr<Callback> callback_;  // null: not asked for
  Status status_;
  Result result_;  // its data are in gathered_
  Bytes gathered_;
  Bytes frozen_;

  // Null: the tensor is in host memory.
  const GpuMemory* gpu_ = nullptr;
  GpuMemory::Block gpu_input_;
  GpuMemory::Block gpu_block_;
  cuda::CUstream submit_stream_ = nullptr;
  cuda::CUstream result_stream_ = nullptr;
};

}  // namespace maypole::properties

#endif  // MAYPOLE_TESTS_PROPERTIES_PLAYER_ATTEMPT_H_
