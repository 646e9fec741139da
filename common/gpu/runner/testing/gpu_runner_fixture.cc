#include "common/gpu/runner/testing/gpu_runner_fixture.h"

#include <algorithm>
#include <cstring>
#include <thread>

namespace maypole {

using cuda::CUDA_SUCCESS;
using cuda::fake::more;

// --- A rank's memory ---------------------------------------------------------

RankMemory CreateRankMemory(uint64_t bytes, int device) {
  const cuda::CUmemLocation location = {cuda::CU_MEM_LOCATION_TYPE_DEVICE,
                                        device};
  cuda::CUmemAllocationProp properties = {};
  properties.type = cuda::CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes =
      cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = location;
  const cuda::CUmemAccessDesc access = {
      location, cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  RankMemory m;
  m.bytes = bytes;
  m.device = device;
  EXPECT_EQ(cuda::fake::cuda().cuMemCreate(&m.handle, bytes, &properties, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(cuda::fake::cuda().cuMemAddressReserve(&m.address, bytes, 0, 0, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(cuda::fake::cuda().cuMemMap(m.address, bytes, 0, m.handle, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(cuda::fake::cuda().cuMemSetAccess(m.address, bytes, &access, 1),
            CUDA_SUCCESS);
  return m;
}

void DestroyRankMemory(const RankMemory& m) {
  EXPECT_EQ(cuda::fake::cuda().cuMemUnmap(m.address, m.bytes), CUDA_SUCCESS);
  EXPECT_EQ(cuda::fake::cuda().cuMemRelease(m.handle), CUDA_SUCCESS);
  EXPECT_EQ(cuda::fake::cuda().cuMemAddressFree(m.address, m.bytes),
            CUDA_SUCCESS);
}

Fd RankMemory::Export() const {
  int fd = -1;
  EXPECT_EQ(cuda::fake::cuda().cuMemExportToShareableHandle(
                &fd, handle, cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_SUCCESS);
  return Fd(fd);
}

std::vector<std::byte> RankMemory::Read(uint64_t offset, size_t count) const {
  std::vector<std::byte> data(count);
  EXPECT_EQ(more().cuMemcpyDtoH_v2(data.data(), address + offset, count),
            CUDA_SUCCESS);
  return data;
}

void RankMemory::Write(uint64_t offset,
                       const std::vector<std::byte>& data) const {
  EXPECT_EQ(more().cuMemcpyHtoD_v2(address + offset, data.data(), data.size()),
            CUDA_SUCCESS);
}

cuda::CUuuid UuidOf(int device) {
  cuda::CUuuid uuid = {};
  EXPECT_EQ(cuda::fake::cuda().cuDeviceGetUuid(&uuid, device), CUDA_SUCCESS);
  return uuid;
}

session::GpuMemoryRequest RequestOf(session::GpuSharing sharing, uint64_t bytes,
                                    uint64_t proof, const cuda::CUuuid& uuid) {
  auto request = session::Make<session::GpuMemoryRequest>();
  request.sharing = static_cast<uint32_t>(sharing);
  request.bytes = bytes;
  request.proof = proof;
  std::memcpy(request.uuid, uuid.bytes, sizeof(request.uuid));
  return request;
}

// --- The fixture -------------------------------------------------------------

void GpuRunnerFixture::SetUp() {
  FakeTest::SetUp();
  hooks().Reset();
  NewRunner();
}

void GpuRunnerFixture::TearDown() {
  DestroyRunner();
  for (const RankMemory& m : memories_) DestroyRankMemory(m);
  EXPECT_TRUE(Becomes([] { return hooks().mapped == 0; }));
  EXPECT_TRUE(Becomes([] { return hooks().streams == 0; }));
  EXPECT_EQ(hooks().reserved, 0);
  EXPECT_EQ(hooks().imported, 0);
  EXPECT_EQ(hooks().allocated, 0);
  EXPECT_EQ(hooks().events, 0);
  size_t free = 0, total = 0;
  EXPECT_EQ(cuda::fake::cuda().cuMemGetInfo(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(free, total);
  FakeTest::TearDown();
}

EpochGpus::Callbacks GpuRunnerFixture::Recording() {
  return {.on_opened =
              [this](GpuMemoryId id, StatusOr<Opened> opened) {
                std::lock_guard lock(mutex_);
                opened_.insert_or_assign(id, std::move(opened));
                changed_.notify_all();
              },
          .on_ended =
              [this](const GpuRun& run, Status status) {
                std::lock_guard lock(mutex_);
                ended_.emplace_back(run.operations.at(0).slot,
                                    std::move(status));
                changed_.notify_all();
              },
          .on_communicator_id =
              [this](uint32_t number, StatusOr<std::string> id) {
                std::lock_guard lock(mutex_);
                ids_.insert_or_assign(number, std::move(id));
                changed_.notify_all();
              },
          .on_abort_stuck =
              [this](std::string text) {
                std::lock_guard lock(mutex_);
                stuck_.push_back(std::move(text));
                changed_.notify_all();
              }};
}

RankMemory GpuRunnerFixture::Create(uint64_t bytes, int device) {
  memories_.push_back(CreateRankMemory(bytes, device));
  return memories_.back();
}

StatusOr<EpochGpus::Opened> GpuRunnerFixture::OpenNow(GpuMemoryId id,
                                                      const RankMemory& memory,
                                                      uint64_t proof) {
  return OpenNow(id,
                 RequestOf(session::GpuSharing::kDescriptor, memory.bytes,
                           proof, UuidOf(memory.device)),
                 memory.Export());
}

StatusOr<EpochGpus::Opened> GpuRunnerFixture::OpenNow(
    GpuMemoryId id, const session::GpuMemoryRequest& request, Fd descriptor) {
  runner().Open(id, request, std::move(descriptor));
  return Answer(id);
}

StatusOr<EpochGpus::Opened> GpuRunnerFixture::Answer(GpuMemoryId id) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, kLong, [&] { return opened_.contains(id); })) {
    ADD_FAILURE() << "no answer";
    return Status(Code::kDeadlineExceeded, "no answer");
  }
  return std::move(opened_.extract(id).mapped());
}

bool GpuRunnerFixture::Answered(GpuMemoryId id) {
  std::lock_guard lock(mutex_);
  return opened_.contains(id);
}

GpuRun GpuRunnerFixture::SumOf(const std::vector<GpuMemoryId>& memories,
                               uint64_t elements, uint32_t slot) {
  GpuOperation o;
  o.slot = slot;
  o.elements = elements;
  for (const GpuMemoryId& id : memories) o.tensors.push_back({id, 0, 0});
  return {.operations = {o}};
}

Status GpuRunnerFixture::Ended(uint32_t slot) {
  std::unique_lock lock(mutex_);
  auto it = ended_.end();
  const bool found = changed_.wait_for(lock, kLong, [&] {
    it = std::find_if(ended_.begin(), ended_.end(),
                      [&](const auto& r) { return r.first == slot; });
    return it != ended_.end();
  });
  if (found) return it->second;
  ADD_FAILURE() << "no end of slot " << slot;
  return Status(Code::kDeadlineExceeded, "no end");
}

bool GpuRunnerFixture::HasEnded(uint32_t slot) {
  std::lock_guard lock(mutex_);
  return std::any_of(ended_.begin(), ended_.end(),
                     [&](const auto& r) { return r.first == slot; });
}

std::vector<uint32_t> GpuRunnerFixture::EndedSlots() {
  std::lock_guard lock(mutex_);
  std::vector<uint32_t> slots;
  for (const auto& [slot, status] : ended_) slots.push_back(slot);
  return slots;
}

StatusOr<std::string> GpuRunnerFixture::NewId(uint32_t number) {
  runner().MakeCommunicatorId(number);
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, kLong, [&] { return ids_.contains(number); })) {
    ADD_FAILURE() << "no id";
    return Status(Code::kDeadlineExceeded, "no id");
  }
  return std::move(ids_.extract(number).mapped());
}

std::vector<std::string> GpuRunnerFixture::stuck() {
  std::lock_guard lock(mutex_);
  return stuck_;
}

bool GpuRunnerFixture::Becomes(const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + kLong;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace maypole
