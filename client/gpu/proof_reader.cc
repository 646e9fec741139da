#include "client/gpu/proof_reader.h"

#include <cstring>

namespace maypole {

using cuda::CurrentGpu;
using cuda::Gpu;

ProofReader::~ProofReader() {
  for (const auto& [gpu, state] : gpus_) {
    const CurrentGpu current(*gpu);
    Drain(*gpu);
    if (state.stream != nullptr) driver_.cuStreamDestroy(state.stream);
    if (state.copied != nullptr) driver_.cuEventDestroy(state.copied);
    if (state.word != nullptr) driver_.cuMemFreeHost(state.word);
  }
}

Status ProofReader::Prepare(const Gpu& gpu, PerGpu* state) const {
  Status s;
  if (state->stream == nullptr) {
    s = gpu.Check(
        driver_.cuStreamCreate(&state->stream, cuda::CU_STREAM_NON_BLOCKING),
        "cuStreamCreate");
  }
  if (s.ok() && state->copied == nullptr) {
    s = gpu.Check(
        driver_.cuEventCreate(&state->copied, cuda::CU_EVENT_DISABLE_TIMING),
        "cuEventCreate");
  }
  if (s.ok() && state->word == nullptr) {
    s = gpu.Check(driver_.cuMemHostAlloc(&state->word, sizeof(uint64_t), 0),
                  "cuMemHostAlloc");
  }
  return s;
}

Status ProofReader::Begin(const Gpu& gpu, cuda::CUdeviceptr address) {
  PerGpu& state = gpus_[&gpu];
  if (Status s = Prepare(gpu, &state); !s.ok()) return s;
  Status s = gpu.Check(
      driver_.cuMemcpyAsync(reinterpret_cast<cuda::CUdeviceptr>(state.word),
                            address, sizeof(uint64_t), state.stream),
      "cuMemcpyAsync of shared memory");
  if (!s.ok()) return s;
  return gpu.Check(driver_.cuEventRecord(state.copied, state.stream),
                   "cuEventRecord");
}

bool ProofReader::Done(const Gpu& gpu, uint64_t* value, Status* error) const {
  const PerGpu& state = gpus_.at(&gpu);
  const cuda::CUresult result = driver_.cuEventQuery(state.copied);
  if (result == cuda::CUDA_ERROR_NOT_READY) return false;
  *error = gpu.Check(result, "cuEventQuery");
  if (error->ok()) std::memcpy(value, state.word, sizeof(*value));
  return true;
}

void ProofReader::Drain(const Gpu& gpu) const {
  const auto found = gpus_.find(&gpu);
  if (found == gpus_.end() || found->second.stream == nullptr) return;
  driver_.cuStreamSynchronize(found->second.stream);
}

}  // namespace maypole
