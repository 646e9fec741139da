#include "tests/gpu/fake/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "tests/gpu/fake/config.h"

namespace maypole::cuda::fake {
namespace {

constexpr int kSeals = F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;
constexpr size_t kPage = 4096;
constexpr size_t kDirtyBytes = 1 << 20;
constexpr int kDirt = 0xA5;

// The name of a memfd says what it is: /proc shows it to every process.
std::string NamePrefix(Backing::Use use) {
  return use == Backing::kAllocation ? "maypole-fake-gpu-allocation-"
                                     : "maypole-fake-gpu-shareable-";
}

// The GPU in the memfd's name; -1 if it has no such name.
int GpuOf(int fd, Backing::Use use) {
  char text[128];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t bytes = readlink(link.c_str(), text, sizeof(text));
  const std::string prefix = "/memfd:" + NamePrefix(use);
  const std::string_view name(text, std::max<ssize_t>(bytes, 0));
  if (name.substr(0, prefix.size()) != prefix) return -1;
  int gpu = -1;
  std::from_chars(text + prefix.size(), text + name.size(), gpu);
  return gpu;
}

void* MapNothing(void* at, size_t bytes) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE |
                    (at == nullptr ? 0 : MAP_FIXED);
  return mmap(at, bytes, PROT_NONE, flags, -1, 0);
}

// New device memory is not zero: what nobody has written must not look right.
void MakeDirty(int fd, size_t bytes) {
  const size_t dirty = std::min(bytes, kDirtyBytes);
  Mapping mapping(
      mmap(nullptr, dirty, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), dirty);
  std::memset(mapping.data(), kDirt, dirty);
}

}  // namespace

Backing::Backing(Fd fd, int gpu, size_t bytes)
    : fd_(std::move(fd)), gpu_(gpu), bytes_(bytes) {
  struct stat status;
  if (fstat(fd_.get(), &status) == 0) identity_ = status.st_ino;
}

Backing::~Backing() {
  if (state_ != nullptr) state_->Charge(gpu_, -int64_t(bytes_), 0);
}

std::shared_ptr<Backing> Backing::Create(SharedState& state, uint64_t limit,
                                         int gpu, size_t bytes, Use use) {
  if (bytes > limit) return nullptr;
  bytes = (bytes + kPage - 1) / kPage * kPage;
  if (!state.Charge(gpu, static_cast<int64_t>(bytes), limit)) return nullptr;
  const std::string name = NamePrefix(use) + std::to_string(gpu);
  Fd fd(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid() || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    Illegal("cannot make a memfd");
  }
  MakeDirty(fd.get(), bytes);
  std::shared_ptr<Backing> backing(new Backing(std::move(fd), gpu, bytes));
  backing->state_ = &state;
  return backing;
}

std::shared_ptr<Backing> Backing::Open(Fd fd, Use use) {
  struct stat status;
  const int gpu = GpuOf(fd.get(), use);
  if (gpu < 0 || fcntl(fd.get(), F_GET_SEALS) != kSeals ||
      fstat(fd.get(), &status) != 0 || status.st_size == 0) {
    return nullptr;
  }
  return std::shared_ptr<Backing>(
      new Backing(std::move(fd), gpu, static_cast<size_t>(status.st_size)));
}

CUdeviceptr FakeMemory::Reserve(size_t bytes, size_t alignment) {
  void* range = MapNothing(nullptr, bytes + alignment);
  void* alias = MapNothing(nullptr, bytes);
  if (range == MAP_FAILED || alias == MAP_FAILED) {
    if (range != MAP_FAILED) munmap(range, bytes + alignment);
    if (alias != MAP_FAILED) munmap(alias, bytes);
    return 0;
  }
  const auto start = reinterpret_cast<CUdeviceptr>(range);
  const CUdeviceptr address = (start + alignment - 1) / alignment * alignment;
  reservations_[address] = {bytes, static_cast<std::byte*>(alias)};
  return address;
}

const FakeMemory::Reservation* FakeMemory::Reserved(CUdeviceptr address,
                                                    CUdeviceptr* start) const {
  auto it = reservations_.upper_bound(address);
  if (it == reservations_.begin()) return nullptr;
  --it;
  *start = it->first;
  return address - it->first < it->second.bytes ? &it->second : nullptr;
}

bool FakeMemory::IsReserved(CUdeviceptr address, size_t bytes) const {
  CUdeviceptr start = 0;
  const Reservation* reservation = Reserved(address, &start);
  return reservation != nullptr && !reservation->retired &&
         bytes <= reservation->bytes - (address - start);
}

bool FakeMemory::Retire(CUdeviceptr address, size_t bytes) {
  const auto it = reservations_.find(address);
  if (it == reservations_.end() || it->second.retired ||
      it->second.bytes != bytes) {
    return false;
  }
  munmap(it->second.host, bytes);
  it->second.retired = true;
  return true;
}

bool FakeMemory::Map(CUdeviceptr address, Region region) {
  if (!region.on_host()) {
    CUdeviceptr start = 0;
    const Reservation* reservation = Reserved(address, &start);
    region.host = reservation->host + (address - start);
    if (mmap(region.host, region.bytes, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_FIXED, region.backing->fd(), 0) == MAP_FAILED) {
      return false;
    }
  }
  regions_.emplace(address, std::move(region));
  return true;
}

CUdeviceptr FakeMemory::MapNew(Region region) {
  const size_t bytes = region.bytes;
  const CUdeviceptr address = Reserve(bytes, kPage);
  if (address == 0) return 0;
  if (Map(address, std::move(region))) return address;
  Retire(address, bytes);
  return 0;
}

void FakeMemory::Unmap(Regions::iterator region) {
  if (!region->second.on_host()) {
    MapNothing(region->second.host, region->second.bytes);
  }
  regions_.erase(region);
}

void FakeMemory::UnmapNew(Regions::iterator region) {
  const CUdeviceptr address = region->first;
  const size_t bytes = region->second.bytes;
  Unmap(region);
  Retire(address, bytes);
}

FakeMemory::Regions::iterator FakeMemory::Containing(CUdeviceptr address) {
  auto it = regions_.upper_bound(address);
  if (it == regions_.begin()) return regions_.end();
  --it;
  return address - it->first < it->second.bytes ? it : regions_.end();
}

bool FakeMemory::Overlaps(CUdeviceptr address, size_t bytes) {
  const auto next = regions_.lower_bound(address);
  return Containing(address) != regions_.end() ||
         (next != regions_.end() && next->first - address < bytes);
}

Place FakeMemory::Where(CUdeviceptr address, size_t bytes) {
  auto it = Containing(address);
  if (it == regions_.end()) {
    CUdeviceptr start = 0;
    if (Reserved(address, &start) != nullptr || Overlaps(address, bytes)) {
      return {Place::kWrong};
    }
    return {Place::kPageable, reinterpret_cast<std::byte*>(address)};
  }
  std::byte* const data = it->second.host + (address - it->first);
  // Ranges that follow each other in one reservation are one range.
  for (CUdeviceptr end = 0;; ++it) {
    if (it == regions_.end() || !it->second.accessible ||
        (end != 0 && it->first != end)) {
      return {Place::kWrong};
    }
    end = it->first + it->second.bytes;
    if (bytes <= end - address) return {Place::kKnown, data};
  }
}

}  // namespace maypole::cuda::fake
