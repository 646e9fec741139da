// Allocation and CUDA's error numbers, with a driver that notes its calls.
#include "worker/backend/gpu/plugin/allocation.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "worker/backend/gpu/plugin/cuda_failure.h"

namespace maypole::gpu::plugin {
namespace {

constexpr CUdeviceptr kAddress = 0x700000000000;
constexpr CUmemGenericAllocationHandle kHandle = 0x4242;
constexpr uint64_t kBytes = 2 << 20;
constexpr CUdevice kDevice = 3;

std::vector<std::string>* calls = nullptr;
std::string failing;  // the call that fails next, and from then on
int exported_fd = -1;

CUresult Note(const std::string& call) {
  calls->push_back(call);
  return call == failing ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

bool IsOurs(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE && location.id == kDevice;
}

DriverApi NotingDriver() {
  DriverApi api;
  api.mem_create = [](CUmemGenericAllocationHandle* handle, size_t size,
                      const CUmemAllocationProp* prop,
                      unsigned long long flags) {
    EXPECT_EQ(size, kBytes);
    EXPECT_EQ(prop->type, CU_MEM_ALLOCATION_TYPE_PINNED);
    EXPECT_EQ(prop->requestedHandleTypes,
              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    EXPECT_TRUE(IsOurs(prop->location));
    EXPECT_EQ(flags, 0u);
    *handle = kHandle;
    return Note("create");
  };
  api.mem_import = [](CUmemGenericAllocationHandle* handle, void* os_handle,
                      CUmemAllocationHandleType type) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(os_handle), 17u);
    EXPECT_EQ(type, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    *handle = kHandle;
    return Note("import");
  };
  api.mem_address_reserve = [](CUdeviceptr* address, size_t size, size_t,
                               CUdeviceptr wanted, unsigned long long) {
    EXPECT_EQ(size, kBytes);
    EXPECT_EQ(wanted, 0u);
    const CUresult result = Note("reserve");
    if (result == CUDA_SUCCESS) *address = kAddress;
    return result;
  };
  api.mem_map = [](CUdeviceptr address, size_t size, size_t offset,
                   CUmemGenericAllocationHandle handle, unsigned long long) {
    EXPECT_EQ(address, kAddress);
    EXPECT_EQ(size, kBytes);
    EXPECT_EQ(offset, 0u);
    EXPECT_EQ(handle, kHandle);
    return Note("map");
  };
  api.mem_set_access = [](CUdeviceptr address, size_t size,
                          const CUmemAccessDesc* access, size_t count) {
    EXPECT_EQ(address, kAddress);
    EXPECT_EQ(size, kBytes);
    EXPECT_EQ(count, 1u);
    EXPECT_TRUE(IsOurs(access->location));
    EXPECT_EQ(access->flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    return Note("access");
  };
  api.mem_unmap = [](CUdeviceptr address, size_t size) {
    EXPECT_EQ(address, kAddress);
    EXPECT_EQ(size, kBytes);
    return Note("unmap");
  };
  api.mem_release = [](CUmemGenericAllocationHandle handle) {
    EXPECT_EQ(handle, kHandle);
    return Note("release");
  };
  api.mem_address_free = [](CUdeviceptr address, size_t size) {
    EXPECT_EQ(address, kAddress);
    EXPECT_EQ(size, kBytes);
    return Note("free");
  };
  api.mem_export = [](void* fd, CUmemGenericAllocationHandle handle,
                      CUmemAllocationHandleType, unsigned long long) {
    EXPECT_EQ(handle, kHandle);
    *static_cast<int*>(fd) = exported_fd;
    return Note("export");
  };
  return api;
}

using Calls = std::vector<std::string>;

class AllocationTest : public ::testing::Test {
 protected:
  AllocationTest() {
    calls = &calls_;
    failing.clear();
  }
  ~AllocationTest() override { calls = nullptr; }

  // What `make` calls until it throws because of `fail`, and what it says.
  template <typename Make>
  Calls Failing(const std::string& fail, const Make& make) {
    failing = fail;
    calls_.clear();
    try {
      make();
      ADD_FAILURE() << fail << " has not thrown";
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.code, MAYPOLE_GPU_RESOURCE_EXHAUSTED);
      EXPECT_EQ(failure.native, CUDA_ERROR_OUT_OF_MEMORY);
      EXPECT_NE(failure.text.find("out of memory"), std::string::npos);
    }
    failing.clear();
    return calls_;
  }

  Calls calls_;
  const DriverApi driver_ = NotingDriver();
};

TEST_F(AllocationTest, MapsAndGivesBackInTheRightOrder) {
  {
    const Allocation allocation = Allocation::Create(driver_, kDevice, kBytes);
    EXPECT_EQ(allocation.address(), kAddress);
    EXPECT_EQ(allocation.bytes(), kBytes);
    EXPECT_EQ(calls_, (Calls{"create", "reserve", "map", "access"}));
    calls_.clear();
  }
  EXPECT_EQ(calls_, (Calls{"unmap", "release", "free"}));
}

TEST_F(AllocationTest, AStepThatFailsTakesBackThoseBeforeIt) {
  const auto create = [&] { Allocation::Create(driver_, kDevice, kBytes); };
  const auto import = [&] { Allocation::Import(driver_, kDevice, 17, kBytes); };
  EXPECT_EQ(Failing("create", create), (Calls{"create"}));
  EXPECT_EQ(Failing("import", import), (Calls{"import"}));
  EXPECT_EQ(Failing("reserve", create),
            (Calls{"create", "reserve", "release"}));
  EXPECT_EQ(Failing("map", create),
            (Calls{"create", "reserve", "map", "release", "free"}));
  EXPECT_EQ(Failing("access", import),
            (Calls{"import", "reserve", "map", "access", "unmap", "release",
                   "free"}));
}

TEST_F(AllocationTest, IsGivenBackOnceAndWholly) {
  Allocation allocation = Allocation::Create(driver_, kDevice, kBytes);
  Allocation moved = std::move(allocation);
  calls_.clear();
  failing = "unmap";
  EXPECT_EQ(moved.Release(), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(calls_, (Calls{"unmap", "release", "free"}));
  EXPECT_EQ(moved.Release(), CUDA_SUCCESS);
  EXPECT_EQ(calls_.size(), 3u);
}

TEST_F(AllocationTest, AbandonedItIsLeftToTheProcessEnd) {
  {
    Allocation allocation = Allocation::Create(driver_, kDevice, kBytes);
    calls_.clear();
    allocation.Abandon();
  }
  EXPECT_EQ(calls_, Calls{});
}

TEST_F(AllocationTest, ExportsDescriptorsThatExecCloses) {
  exported_fd = open("/dev/null", O_RDONLY);
  const Allocation own = Allocation::Create(driver_, kDevice, kBytes);
  EXPECT_EQ(own.Export(), exported_fd);
  EXPECT_EQ(fcntl(exported_fd, F_GETFD), FD_CLOEXEC);
  close(exported_fd);

  const Allocation imported = Allocation::Import(driver_, kDevice, 17, kBytes);
  try {
    imported.Export();
    ADD_FAILURE() << "imported memory was exported";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code, MAYPOLE_GPU_FAILED_PRECONDITION);
  }
}

// What the runtime says, the driver says with the same numbers.
TEST(CudaFailure, NumbersOfDriverAndRuntimeAreTheSame) {
  EXPECT_EQ(int{CUDA_ERROR_OUT_OF_MEMORY}, int{cudaErrorMemoryAllocation});
  EXPECT_EQ(int{CUDA_ERROR_INVALID_VALUE}, int{cudaErrorInvalidValue});
  EXPECT_EQ(int{CUDA_ERROR_INVALID_HANDLE},
            int{cudaErrorInvalidResourceHandle});
  EXPECT_EQ(int{CUDA_ERROR_NOT_READY}, int{cudaErrorNotReady});
  EXPECT_EQ(int{CUDA_ERROR_NOT_SUPPORTED}, int{cudaErrorNotSupported});
  EXPECT_EQ(int{CUDA_ERROR_NOT_PERMITTED}, int{cudaErrorNotPermitted});
  EXPECT_EQ(int{CUDA_ERROR_NO_DEVICE}, int{cudaErrorNoDevice});
  EXPECT_EQ(int{CUDA_ERROR_ILLEGAL_ADDRESS}, int{cudaErrorIllegalAddress});
}

TEST(CudaFailure, SaysWhatItMeansToACaller) {
  EXPECT_EQ(CodeOfCuda(cudaErrorMemoryAllocation),
            MAYPOLE_GPU_RESOURCE_EXHAUSTED);
  EXPECT_EQ(CodeOfCuda(cudaErrorInvalidValue), MAYPOLE_GPU_INVALID_ARGUMENT);
  EXPECT_EQ(CodeOfCuda(cudaErrorNotReady), MAYPOLE_GPU_FAILED_PRECONDITION);
  EXPECT_EQ(CodeOfCuda(cudaErrorNotSupported), MAYPOLE_GPU_UNIMPLEMENTED);
  EXPECT_EQ(CodeOfCuda(cudaErrorMpsServerNotReady), MAYPOLE_GPU_UNAVAILABLE);
  EXPECT_EQ(CodeOfCuda(cudaErrorIllegalAddress), MAYPOLE_GPU_INTERNAL);
  EXPECT_EQ(CudaFailure(cudaErrorMemoryAllocation, "cuMemCreate").text,
            "cuMemCreate: out of memory (cudaErrorMemoryAllocation, 2)");
}

}  // namespace
}  // namespace maypole::gpu::plugin
