#include "tests/gpu/testing/memory.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <stdexcept>

namespace maypole::cuda {
namespace {

constexpr auto kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr std::chrono::minutes kLongest(1);
constexpr int kLooksBetweenYields = 2000;

Fd NewPages(size_t bytes) {
  Fd fd(memfd_create("maypole-gpu-test", MFD_CLOEXEC));
  if (!fd.valid() || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    throw std::runtime_error("cannot make a memfd");
  }
  return fd;
}

}  // namespace

bool ShareableMemory::IsSupported(const Device& device) {
  return device.Attribute(
             CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 0 &&
         device.Attribute(
             CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) !=
             0;
}

CUmemAllocationProp ShareableMemory::Properties(const Device& device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device.gpu().number()};
  properties.requestedHandleTypes = kDescriptor;
  return properties;
}

size_t ShareableMemory::Rounded(const Device& device, size_t bytes) {
  const CUmemAllocationProp properties = Properties(device);
  size_t granularity = 0;
  device.Check(
      device.cuda().cuMemGetAllocationGranularity(
          &granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
      "cuMemGetAllocationGranularity");
  return (bytes + granularity - 1) / granularity * granularity;
}

ShareableMemory::ShareableMemory(const Device& device,
                                 CUmemGenericAllocationHandle handle,
                                 size_t bytes)
    : device_(device), handle_(handle), bytes_(bytes) {
  const Driver& cuda = device.cuda();
  device.Check(cuda.cuMemAddressReserve(&address_, bytes, 0, 0, 0),
               "cuMemAddressReserve");
  device.Check(cuda.cuMemMap(address_, bytes, 0, handle, 0), "cuMemMap");
  const CUmemAccessDesc access = {
      {CU_MEM_LOCATION_TYPE_DEVICE, device.gpu().number()},
      CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  device.Check(cuda.cuMemSetAccess(address_, bytes, &access, 1),
               "cuMemSetAccess");
}

ShareableMemory::~ShareableMemory() {
  if (address_ == 0) return;
  device_.cuda().cuMemUnmap(address_, bytes_);
  device_.cuda().cuMemAddressFree(address_, bytes_);
  device_.cuda().cuMemRelease(handle_);
}

ShareableMemory ShareableMemory::Create(const Device& device, size_t bytes) {
  const CUmemAllocationProp properties = Properties(device);
  bytes = Rounded(device, bytes);
  CUmemGenericAllocationHandle handle = 0;
  device.Check(device.cuda().cuMemCreate(&handle, bytes, &properties, 0),
               "cuMemCreate");
  return ShareableMemory(device, handle, bytes);
}

CUresult ShareableMemory::TryImport(const Device& device, int fd,
                                    CUmemGenericAllocationHandle* handle) {
  return device.cuda().cuMemImportFromShareableHandle(
      handle, reinterpret_cast<void*>(intptr_t{fd}), kDescriptor);
}

ShareableMemory ShareableMemory::Import(const Device& device, const Fd& fd,
                                        size_t bytes) {
  CUmemGenericAllocationHandle handle = 0;
  device.Check(TryImport(device, fd.get(), &handle),
               "cuMemImportFromShareableHandle");
  return ShareableMemory(device, handle, Rounded(device, bytes));
}

Fd ShareableMemory::Export() const {
  int fd = -1;
  device_.Check(
      device_.cuda().cuMemExportToShareableHandle(&fd, handle_, kDescriptor, 0),
      "cuMemExportToShareableHandle");
  return Fd(fd);
}

SharedPages::SharedPages(size_t bytes) : SharedPages(NewPages(bytes), bytes) {}

SharedPages::SharedPages(Fd fd, size_t bytes) : fd_(std::move(fd)) {
  void* data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (data == MAP_FAILED) throw std::runtime_error("cannot map a memfd");
  mapping_ = Mapping(data, bytes);
}

Registered::Registered(const Device& device, const SharedPages& pages,
                       unsigned flags)
    : device_(device), data_(pages.data()) {
  device.Check(device.cuda().cuMemHostRegister(data_, pages.bytes(), flags),
               "cuMemHostRegister");
  if ((flags & CU_MEMHOSTREGISTER_DEVICEMAP) == 0) return;
  device.Check(device.cuda().cuMemHostGetDevicePointer(&address_, data_, 0),
               "cuMemHostGetDevicePointer");
}

Registered::~Registered() { device_.cuda().cuMemHostUnregister(data_); }

PinnedMemory::PinnedMemory(const Device& device, size_t bytes)
    : device_(device) {
  device.Check(
      device.cuda().cuMemHostAlloc(
          &data_, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
      "cuMemHostAlloc");
  device.Check(device.cuda().cuMemHostGetDevicePointer(&address_, data_, 0),
               "cuMemHostGetDevicePointer");
}

PinnedMemory::~PinnedMemory() { device_.cuda().cuMemFreeHost(data_); }

uint64_t LoadWord(uint64_t& word) {
  return std::atomic_ref(word).load(std::memory_order_acquire);
}

void StoreWord(uint64_t& word, uint64_t value) {
  std::atomic_ref(word).store(value, std::memory_order_release);
}

void AwaitWord(uint64_t& word, uint64_t value) {
  const auto end = std::chrono::steady_clock::now() + kLongest;
  for (int looks = 1; LoadWord(word) != value; ++looks) {
    if (looks % kLooksBetweenYields != 0) continue;
    sched_yield();  // there may be fewer processors than processes
    if (std::chrono::steady_clock::now() > end) {
      throw std::runtime_error("a word was not written in time");
    }
  }
}

}  // namespace maypole::cuda
