// Compares nccl_api.h with NCCL's own header, where that is installed. The
// compiler does all of it: the test passes if it compiles.
#include "tests/gpu/fake_nccl/nccl_api.h"

#include <gtest/gtest.h>

#if __has_include(<nccl.h>)

// nccl.h needs no more of CUDA's runtime than this type.
#define __CUDA_RUNTIME_H__
#define __CUDA_FP16_H__
using cudaStream_t = maypole::cuda::CUstream;
#include <nccl.h>

#include <cstddef>

namespace {

namespace ours = maypole::nccl::fake;

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
SAME(ncclNumOps);
SAME(ncclInt8);
SAME(ncclUint8);
SAME(ncclInt32);
SAME(ncclUint32);
SAME(ncclInt64);
SAME(ncclUint64);
SAME(ncclFloat16);
SAME(ncclFloat32);
SAME(ncclFloat64);
SAME(ncclBfloat16);
static_assert(sizeof(ours::ncclResult_t) == sizeof(::ncclResult_t));
static_assert(sizeof(ours::ncclRedOp_t) == sizeof(::ncclRedOp_t));
static_assert(sizeof(ours::ncclDataType_t) == sizeof(::ncclDataType_t));
static_assert(sizeof(ours::ncclUniqueId) == sizeof(::ncclUniqueId));

#define SAME_PLACE(member)                              \
  static_assert(offsetof(ours::ncclConfig_t, member) == \
                offsetof(::ncclConfig_t, member))
SAME_PLACE(size);
SAME_PLACE(magic);
SAME_PLACE(version);
SAME_PLACE(blocking);
SAME_PLACE(netName);
SAME_PLACE(commName);

TEST(NcclApi, HasTheHeadersInitialValues) {
  const ours::ncclConfig_t own;
  const ::ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  EXPECT_EQ(own.magic, theirs.magic);
  EXPECT_EQ(own.blocking, theirs.blocking);
  EXPECT_EQ(own.netName, theirs.netName);
  // A newer header may have more members.
  EXPECT_LE(own.size, theirs.size);
}

}  // namespace

#else

TEST(NcclApi, HasTheHeadersInitialValues) {
  GTEST_SKIP() << "nccl.h is not installed";
}

#endif
