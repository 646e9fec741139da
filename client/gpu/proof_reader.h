// ProofReader: reads the first 8 bytes of GPU memory.
//
// Purpose: the copy runs on a separate stream for each GPU, so neither the copy
// nor the user's work waits for the other.
//
//   Status s = reader.Begin(gpu, address);
//   while (!reader.Done(gpu, &value, &s)) ...
//
// Thread contract: not synchronized. The GPU must be current.
//
// Invariants: one copy at a time on each GPU. The memory must not be unmapped
// before Done() or Drain().
#ifndef MAYPOLE_CLIENT_GPU_PROOF_READER_H_
#define MAYPOLE_CLIENT_GPU_PROOF_READER_H_

#include <cstdint>
#include <map>

#include "common/gpu/gpu.h"
#include "common/status.h"

namespace maypole {

class ProofReader {
 public:
  explicit ProofReader(const cuda::Driver& driver) : driver_(driver) {}
  // Waits for copies that are not done.
  ~ProofReader();
  ProofReader(const ProofReader&) = delete;
  ProofReader& operator=(const ProofReader&) = delete;

  Status Begin(const cuda::Gpu& gpu, cuda::CUdeviceptr address);
  // False if the copy is not done. Otherwise sets *value, or *error if the
  // device has failed.
  bool Done(const cuda::Gpu& gpu, uint64_t* value, Status* error) const;
  // Waits for the GPU's copy.
  void Drain(const cuda::Gpu& gpu) const;

 private:
  struct PerGpu {
    cuda::CUstream stream = nullptr;
    cuda::CUevent copied = nullptr;
    void* word = nullptr;  // page-locked
  };
  Status Prepare(const cuda::Gpu& gpu, PerGpu* state) const;

  const cuda::Driver& driver_;
  std::map<const cuda::Gpu*, PerGpu> gpus_;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_GPU_PROOF_READER_H_
