#include "tests/gpu/fake_nccl/nccl_testing.h"

#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace maypole::nccl::fake {
namespace {

constexpr char kLibrary[] = "tests/gpu/fake_nccl/libnccl.so.2";  // runfiles
constexpr size_t kBytes = 64 << 10;

Nccl Load() {
  cuda();  // NCCL finds libcuda.so.1, which is open already
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::abort();
  }
  Nccl calls;
#define FIND(name) \
  calls.name = reinterpret_cast<decltype(calls.name)>(dlsym(library, #name));
  MAYPOLE_NCCL_CALLS(FIND)
#undef FIND
  return calls;
}

CUdeviceptr Address(const void* memory) {
  return reinterpret_cast<CUdeviceptr>(memory);
}

}  // namespace

const Nccl& nccl() {
  static const Nccl calls = Load();
  return calls;
}

Rank::Rank(int number) : number(number) {
  nccl();
  EXPECT_EQ(cuda().cuDevicePrimaryCtxRetain(&context, number), 0);
  Enter();
  EXPECT_EQ(cuda().cuStreamCreate(&stream, cuda::CU_STREAM_NON_BLOCKING), 0);
  EXPECT_EQ(cuda().cuMemAlloc(&memory_, 2 * kBytes), 0);
}

Rank::~Rank() {
  Enter();
  EXPECT_EQ(cuda().cuStreamSynchronize(stream), 0);
  EXPECT_EQ(cuda().cuDevicePrimaryCtxRelease(number), 0);
}

void Rank::Enter() const { more().cuCtxSetCurrent(context); }

void* Rank::in(size_t byte) const {
  return reinterpret_cast<void*>(memory_ + byte);
}

void* Rank::out(size_t byte) const { return in(kBytes + byte); }

void Rank::Abort() {
  EXPECT_EQ(nccl().ncclCommAbort(comm), ncclSuccess);
  comm = nullptr;
}

void Rank::Destroy() {
  EXPECT_EQ(nccl().ncclCommDestroy(comm), ncclSuccess);
  comm = nullptr;
}

ncclResult_t Rank::state() const {
  ncclResult_t state = ncclNumResults;
  EXPECT_EQ(nccl().ncclCommGetAsyncError(comm, &state), ncclSuccess);
  return state;
}

ncclResult_t Rank::Ready() const {
  while (state() == ncclInProgress) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return state();
}

void Rank::WriteBytes(void* to, const void* from, size_t bytes) const {
  EXPECT_EQ(cuda().cuMemcpyAsync(Address(to), Address(from), bytes, stream), 0);
}

void Rank::ReadBytes(void* to, const void* from, size_t bytes) const {
  EXPECT_EQ(cuda().cuMemcpyAsync(Address(to), Address(from), bytes, stream), 0);
}

ncclResult_t InitRank(Rank& rank, int ranks, const ncclUniqueId& id,
                      Blocking blocking) {
  ncclConfig_t config;
  config.blocking = blocking;
  rank.Enter();
  const ncclResult_t result = nccl().ncclCommInitRankConfig(
      &rank.slot, ranks, id, rank.number, &config);
  rank.comm = __atomic_load_n(&rank.slot, __ATOMIC_ACQUIRE);
  return result;
}

// Before the first rank waits for its device's streams, and these for others.
void NcclTest::TearDown() {
  for (Rank& rank : ranks_) rank.Abort();
}

std::deque<Rank>& NcclTest::Make(int n) {
  for (int i = 0; i < n; ++i) ranks_.emplace_back(i);
  return ranks_;
}

std::deque<Rank>& NcclTest::Init(int n, Blocking blocking) {
  Make(n);
  ncclUniqueId id;
  EXPECT_EQ(nccl().ncclGetUniqueId(&id), ncclSuccess);
  Together([&](Rank& rank) {
    EXPECT_EQ(InitRank(rank, n, id, blocking),
              blocking ? ncclSuccess : ncclInProgress);
  });
  for (Rank& rank : ranks_) EXPECT_EQ(rank.Ready(), ncclSuccess);
  return ranks_;
}

void NcclTest::Together(const std::function<void(Rank&)>& body) {
  std::vector<std::thread> threads;
  for (Rank& rank : ranks_) {
    threads.emplace_back([&] {
      rank.Enter();
      body(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace maypole::nccl::fake
