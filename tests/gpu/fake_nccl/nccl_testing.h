// NcclTest: a test on the fake libnccl.so.2, with ranks of its own process.
//
// Purpose: tests call NCCL as a program that has opened it does.
//
//   class GroupTest : public NcclTest {};
//   TEST_F(GroupTest, Adds) {
//     std::vector<Rank>& ranks = Init(2, kBlocking);
//     Together([&](Rank& rank) { rank.Fill({1, 2}); ... });
//   }
//
// Thread contract: a Rank is used by one thread at a time, which begins with
// Rank::Enter().
//
// Invariants: rank r is on device r. At a test's end, communicators that it has
// not destroyed are aborted.
#ifndef MAYPOLE_TESTS_GPU_FAKE_NCCL_NCCL_TESTING_H_
#define MAYPOLE_TESTS_GPU_FAKE_NCCL_NCCL_TESTING_H_

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/gpu/fake/fake_testing.h"
#include "tests/gpu/fake_nccl/nccl_api.h"

namespace maypole::nccl::fake {

#define MAYPOLE_NCCL_CALLS(CALL) \
  CALL(ncclGetVersion)           \
  CALL(ncclGetUniqueId)          \
  CALL(ncclGetErrorString)       \
  CALL(ncclGetLastError)         \
  CALL(ncclCommInitRankConfig)   \
  CALL(ncclCommFinalize)         \
  CALL(ncclCommDestroy)          \
  CALL(ncclCommAbort)            \
  CALL(ncclCommGetAsyncError)    \
  CALL(ncclCommCount)            \
  CALL(ncclCommUserRank)         \
  CALL(ncclGroupStart)           \
  CALL(ncclGroupEnd)             \
  CALL(ncclAllReduce)            \
  CALL(ncclBroadcast)            \
  CALL(ncclReduce)               \
  CALL(ncclReduceScatter)        \
  CALL(ncclAllGather)            \
  CALL(ncclSend)                 \
  CALL(ncclRecv)

// The functions that dlsym() has found.
struct Nccl {
#define MEMBER(name) decltype(&fake::name) name;
  MAYPOLE_NCCL_CALLS(MEMBER)
#undef MEMBER
};
const Nccl& nccl();

using cuda::CUdeviceptr;
using cuda::fake::cuda;
using cuda::fake::more;

// A rank with 64 KiB of memory for each of input and output.
class Rank {
 public:
  explicit Rank(int number);
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  void Enter() const;  // makes its context current to this thread
  void* in(size_t byte = 0) const;
  void* out(size_t byte = 0) const;
  void Abort();
  void Destroy();
  // Waits for what the last call has begun.
  ncclResult_t Ready() const;
  ncclResult_t state() const;

  template <typename T>
  void Write(void* to, const std::vector<T>& values) const {
    WriteBytes(to, values.data(), values.size() * sizeof(T));
  }
  // When the stream is done.
  template <typename T>
  std::vector<T> Read(const void* from, size_t count) const {
    std::vector<T> values(count);
    ReadBytes(values.data(), from, count * sizeof(T));
    return values;
  }

  const int number;
  cuda::CUcontext context = nullptr;
  CUstream stream = nullptr;
  // NCCL's own thread writes to the slot when the initialisation has ended, so
  // the rank's thread reads it only once.
  ncclComm_t slot = nullptr;
  ncclComm_t comm = nullptr;

 private:
  void WriteBytes(void* to, const void* from, size_t bytes) const;
  void ReadBytes(void* to, const void* from, size_t bytes) const;

  CUdeviceptr memory_ = 0;
};

enum Blocking { kNonBlocking = 0, kBlocking = 1 };

class NcclTest : public testing::Test {
 protected:
  void TearDown() override;
  // Ranks 0 to n-1 of a new communicator.
  std::deque<Rank>& Init(int n, Blocking blocking);
  // The ranks without a communicator.
  std::deque<Rank>& Make(int n);
  // Each on a thread of its own.
  void Together(const std::function<void(Rank&)>& body);

  std::deque<Rank> ranks_;
};

ncclResult_t InitRank(Rank& rank, int ranks, const ncclUniqueId& id,
                      Blocking blocking);

}  // namespace maypole::nccl::fake

#endif  // MAYPOLE_TESTS_GPU_FAKE_NCCL_NCCL_TESTING_H_
