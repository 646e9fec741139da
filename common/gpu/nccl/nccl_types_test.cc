// Compares nccl_types.h and nccl.h with NCCL's own header, where that is
// installed. The compiler checks everything: the test passes if it compiles.
#include "common/gpu/nccl/nccl_types.h"

#include <gtest/gtest.h>

#include "common/gpu/nccl/nccl.h"

#if __has_include(<nccl.h>)

namespace {

namespace ours = maypole::nccl;

// Macros in NCCL's header, so they are read before it is included.
constexpr size_t kOurIdBytes = ours::NCCL_UNIQUE_ID_BYTES;
constexpr int kOurUndefined = ours::NCCL_CONFIG_UNDEF_INT;

}  // namespace

// It needs only this type of CUDA's runtime.
#define __CUDA_RUNTIME_H__
#define __CUDA_FP16_H__
using cudaStream_t = maypole::cuda::CUstream;
#include <nccl.h>

#include <cstddef>
#include <type_traits>

namespace {

static_assert(kOurIdBytes == NCCL_UNIQUE_ID_BYTES);
static_assert(kOurUndefined == NCCL_CONFIG_UNDEF_INT);
static_assert(sizeof(ours::ncclUniqueId) == sizeof(::ncclUniqueId));

#define SAME(name) \
  static_assert(static_cast<int>(ours::name) == static_cast<int>(::name))
SAME(ncclSuccess);
SAME(ncclUnhandledCudaError);
SAME(ncclSystemError);
SAME(ncclInternalError);
SAME(ncclInvalidArgument);
SAME(ncclInvalidUsage);
SAME(ncclRemoteError);
SAME(ncclInProgress);
SAME(ncclSum);
SAME(ncclProd);
SAME(ncclMax);
SAME(ncclMin);
SAME(ncclAvg);
SAME(ncclInt8);
SAME(ncclUint8);
SAME(ncclInt32);
SAME(ncclInt64);
SAME(ncclFloat16);
SAME(ncclFloat32);
SAME(ncclFloat64);
SAME(ncclBfloat16);

// A newer struct has more members at its end.
static_assert(sizeof(ours::ncclConfig_t) <= sizeof(::ncclConfig_t));
#define SAME_PLACE(member)                              \
  static_assert(offsetof(ours::ncclConfig_t, member) == \
                    offsetof(::ncclConfig_t, member) && \
                sizeof(ours::ncclConfig_t{}.member) ==  \
                    sizeof(decltype(::ncclConfig_t::member)))
SAME_PLACE(size);
SAME_PLACE(magic);
SAME_PLACE(version);
SAME_PLACE(blocking);
SAME_PLACE(cgaClusterSize);
SAME_PLACE(minCTAs);
SAME_PLACE(maxCTAs);
SAME_PLACE(netName);
SAME_PLACE(splitShare);

// Functions: the same number of parameters, of the same sizes, pointers where
// theirs are.
template <typename A, typename B>
constexpr bool kSameParameter =
    sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>;

template <typename Ours, typename Theirs>
struct SameCall : std::false_type {};
template <typename R, typename... A, typename S, typename... B>
requires(sizeof...(A) == sizeof...(B)) struct SameCall<R (*)(A...), S (*)(B...)>
    : std::bool_constant<kSameParameter<R, S> &&
                         (kSameParameter<A, B> && ...)> {
};

#define SAME_CALL(name) \
  static_assert(SameCall<decltype(ours::Nccl::name), decltype(&::name)>::value)
SAME_CALL(ncclGetVersion);
SAME_CALL(ncclGetUniqueId);
SAME_CALL(ncclGetErrorString);
SAME_CALL(ncclGetLastError);
SAME_CALL(ncclCommInitRankConfig);
SAME_CALL(ncclCommAbort);
SAME_CALL(ncclCommGetAsyncError);
SAME_CALL(ncclGroupStart);
SAME_CALL(ncclGroupEnd);
SAME_CALL(ncclAllReduce);
SAME_CALL(ncclBroadcast);
SAME_CALL(ncclReduce);
SAME_CALL(ncclReduceScatter);
SAME_CALL(ncclAllGather);
SAME_CALL(ncclSend);
SAME_CALL(ncclRecv);

TEST(NcclTypes, AreThoseOfNccl) {
  EXPECT_GE(NCCL_VERSION_CODE, ours::kMinNcclVersion);
  const ::ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  EXPECT_EQ(ours::ncclConfig_t{}.magic, theirs.magic);
}

}  // namespace

#else

TEST(NcclTypes, AreThoseOfNccl) { GTEST_SKIP() << "there is no nccl.h"; }

#endif
