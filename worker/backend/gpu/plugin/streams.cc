// Streams, and operations on them that do not use the plugin's own kernels.
#include "worker/backend/gpu/plugin/device.h"
#include "worker/backend/gpu/plugin/ranges.h"

using maypole::gpu::plugin::Check;
using maypole::gpu::plugin::CheckDisjoint;
using maypole::gpu::plugin::CudaFailure;
using maypole::gpu::plugin::Hex;
using maypole::gpu::plugin::InvalidArgument;
using maypole::gpu::plugin::Range;
using maypole::gpu::plugin::RangeOf;
using maypole::gpu::plugin::Unimplemented;

uint64_t MaypoleGpu::CreateStream() {
  cudaStream_t stream = nullptr;
  // Not ordered with the default stream, which belongs to the application.
  Check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
        "cudaStreamCreateWithFlags");
  return streams_.Add(stream);
}

void MaypoleGpu::DestroyStream(uint64_t stream) {
  Check(cudaStreamDestroy(streams_.Take(stream)), "cudaStreamDestroy");
}

bool MaypoleGpu::StreamDone(uint64_t stream) {
  const cudaError_t result = cudaStreamQuery(streams_.Get(stream));
  if (result == cudaErrorNotReady) return false;
  Check(result, "cudaStreamQuery");
  return true;
}

void MaypoleGpu::Synchronize(uint64_t stream) {
  Check(cudaStreamSynchronize(streams_.Get(stream)), "cudaStreamSynchronize");
}

void MaypoleGpu::CheckStreamFlags(uint64_t flag) const {
  if (!stream_flags_) {
    throw Unimplemented("this device does not support 64-bit stream flags");
  }
  if (flag == 0 || flag % sizeof(uint64_t) != 0) {
    throw InvalidArgument("the address of a flag is " + Hex(flag) +
                          "; it must be a positive multiple of 8");
  }
}

// CU_STREAM_WRITE_VALUE_DEFAULT implies a barrier: all work enqueued before is
// visible to the whole system before the value is.
void MaypoleGpu::WriteValue(uint64_t stream, uint64_t flag, uint64_t value) {
  CheckStreamFlags(flag);
  Check(driver_.stream_write_value64(streams_.Get(stream), flag, value,
                                     CU_STREAM_WRITE_VALUE_DEFAULT),
        "cuStreamWriteValue64");
}

void MaypoleGpu::WaitValue(uint64_t stream, uint64_t flag, uint64_t value,
                           bool equal) {
  CheckStreamFlags(flag);
  const unsigned int how =
      equal ? CU_STREAM_WAIT_VALUE_EQ : CU_STREAM_WAIT_VALUE_GEQ;
  Check(driver_.stream_wait_value64(streams_.Get(stream), flag, value, how),
        "cuStreamWaitValue64");
}

void MaypoleGpu::Copy(uint64_t stream, uint64_t to, uint64_t from,
                      uint64_t bytes) {
  const cudaStream_t on = streams_.Get(stream);
  if (bytes == 0) return;
  CheckDisjoint(RangeOf(to, bytes, 1), RangeOf(from, bytes, 1));
  // cudaMemcpyDefault: CUDA derives the kind of memory from the addresses.
  Check(cudaMemcpyAsync(reinterpret_cast<void*>(to),
                        reinterpret_cast<const void*>(from), bytes,
                        cudaMemcpyDefault, on),
        "cudaMemcpyAsync");
}

void MaypoleGpu::Fill(uint64_t stream, uint64_t to, uint32_t word,
                      uint64_t words) {
  const cudaStream_t on = streams_.Get(stream);
  if (words == 0) return;
  RangeOf(to, words, sizeof(word));
  Check(driver_.memset_d32_async(to, word, words, on), "cuMemsetD32Async");
}
