#include "worker/backend/gpu/testing/fake_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/backend/gpu/testing/fake_shared.h"

namespace maypole::gpu {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kMagic = 0x6d61797066616b32;  // "maypfak2"
constexpr uint64_t kGarbageBytes = 1 << 20;

// The page after the bytes of a memory.
struct Label {
  uint64_t magic, machine, memory, bytes;
  int32_t device;
};

std::string Hex(Address address) { return absl::StrFormat("0x%x", address); }

absl::Status Invalid(const std::string& text) {
  return absl::InvalidArgumentError("CUDA_ERROR_INVALID_VALUE: " + text);
}

}  // namespace

bool Piece::Overlaps(const Piece& other) const {
  if (bytes == 0 || other.bytes == 0) return false;
  if (memory != 0 && memory == other.memory) {
    return offset < other.offset + other.bytes && other.offset < offset + bytes;
  }
  return data < other.data + other.bytes && other.data < data + bytes;
}

FakeMemory::~FakeMemory() {
  for (const auto& [address, region] : regions_) {
    if (region.kind == Kind::kOwn || region.kind == Kind::kImported) {
      ledger_.Drop(process_, region.memory);
    }
  }
}

absl::StatusOr<Memory> FakeMemory::Allocate(uint64_t bytes) {
  if (bytes == 0 || bytes > uint64_t{1} << 46) {
    return Invalid(absl::StrCat("cannot allocate ", bytes, " bytes"));
  }
  const uint64_t rounded =
      (bytes + kGranularity - 1) / kGranularity * kGranularity;
  const absl::StatusOr<uint64_t> memory =
      ledger_.Take(process_, device_, rounded);
  if (!memory.ok()) return memory.status();
  absl::StatusOr<Fd> fd =
      MakeSharedFile("maypole-fake-memory", rounded + kPage);
  if (fd.ok()) {
    const Label label = {.magic = kMagic,
                         .machine = ledger_.machine(),
                         .memory = *memory,
                         .bytes = rounded,
                         .device = device_};
    if (pwrite(fd->get(), &label, sizeof(label), static_cast<off_t>(rounded)) !=
        sizeof(label)) {
      fd = absl::InternalError(absl::StrCat("pwrite: ", strerror(errno)));
    }
  }
  if (!fd.ok()) {
    ledger_.Drop(process_, *memory);
    return fd.status();
  }
  absl::StatusOr<Memory> out = Map(Kind::kOwn, *memory, rounded, fd->get());
  if (!out.ok()) {
    ledger_.Drop(process_, *memory);
    return out;
  }
  regions_.at(out->address).fd = *std::move(fd);
  memset(reinterpret_cast<void*>(out->address), 0xA5,
         std::min(rounded, kGarbageBytes));
  return out;
}

absl::StatusOr<Memory> FakeMemory::Map(Kind kind, uint64_t memory,
                                       uint64_t bytes, int fd) {
  absl::StatusOr<Mapping> mapping = MapShared(fd, bytes);
  if (!mapping.ok()) return mapping.status();
  const Address address = reinterpret_cast<Address>(mapping->data());
  const bool is_new = regions_
                          .emplace(address, Region{kind, bytes, memory, Fd(),
                                                   *std::move(mapping)})
                          .second;
  if (!is_new) {
    return absl::FailedPreconditionError(
        absl::StrCat("registered host memory at ", Hex(address),
                     " was unmapped before it was unregistered"));
  }
  return Memory{address, bytes};
}

absl::StatusOr<Fd> FakeMemory::Export(Address address) {
  const auto region = Containing(address);
  if (region == regions_.end() || region->first != address ||
      region->second.kind == Kind::kHost) {
    return Invalid(absl::StrCat(Hex(address), " begins no allocation"));
  }
  if (region->second.kind != Kind::kOwn) {
    return absl::FailedPreconditionError(absl::StrCat(
        "CUDA_ERROR_INVALID_VALUE: ", Hex(address),
        region->second.kind == Kind::kFreed ? " was freed before"
                                            : " was imported, not allocated"));
  }
  Fd fd(fcntl(region->second.fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!fd.valid()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("F_DUPFD_CLOEXEC: ", strerror(errno)));
  }
  return fd;
}

absl::StatusOr<Memory> FakeMemory::Import(int fd, uint64_t bytes) {
  Label label = {};
  if (bytes == 0 || bytes % kGranularity != 0 || bytes > uint64_t{1} << 46) {
    return Invalid(absl::StrCat(bytes, " is not the size of an allocation"));
  }
  const bool of_that_size = IsSharedFile(fd, bytes + kPage) &&
                            pread(fd, &label, sizeof(label),
                                  static_cast<off_t>(bytes)) == sizeof(label);
  if (!of_that_size || label.magic != kMagic || label.bytes != bytes ||
      label.machine != ledger_.machine()) {
    return Invalid(absl::StrCat("descriptor ", fd, " is no exported memory of ",
                                bytes, " bytes of this machine"));
  }
  if (label.device != device_) {
    return Invalid(absl::StrCat("descriptor ", fd, " is memory of device ",
                                label.device, ", not ", device_));
  }
  const absl::Status held =
      ledger_.Hold(process_, label.memory, device_, bytes);
  if (!held.ok()) return held;
  absl::StatusOr<Memory> out = Map(Kind::kImported, label.memory, bytes, fd);
  if (!out.ok()) ledger_.Drop(process_, label.memory);
  return out;
}

absl::Status FakeMemory::CheckFree(Address address) const {
  const auto region = Containing(address);
  if (region == regions_.end() || region->first != address ||
      region->second.kind == Kind::kHost) {
    return Invalid(absl::StrCat(Hex(address), " begins no memory to be freed"));
  }
  if (region->second.kind == Kind::kFreed) {
    return absl::FailedPreconditionError(absl::StrCat(
        "CUDA_ERROR_INVALID_VALUE: ", Hex(address), " was freed before"));
  }
  return absl::OkStatus();
}

absl::Status FakeMemory::Free(Address address) {
  const absl::Status status = CheckFree(address);
  if (!status.ok()) return status;
  Region& region = regions_.find(address)->second;
  ledger_.Drop(process_, region.memory);
  return TakeAccess(region);
}

// Replaces the region with an inaccessible mapping, so that its addresses are
// not reused.
absl::Status FakeMemory::TakeAccess(Region& region) {
  region.kind = Kind::kFreed;
  region.fd.Reset();
  if (mmap(region.mapping.data(), region.mapping.size(), PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
           0) == MAP_FAILED) {
    return absl::InternalError(absl::StrCat("mmap: ", strerror(errno)));
  }
  return absl::OkStatus();
}

absl::StatusOr<Address> FakeMemory::RegisterHost(void* host, uint64_t bytes) {
  const Address address = reinterpret_cast<Address>(host);
  if (address == 0 || address % kPage != 0 || bytes == 0 ||
      address + bytes < address) {
    return Invalid(absl::StrCat(bytes, " bytes at ", Hex(address),
                                " are not whole pages of host memory"));
  }
  const auto after = regions_.lower_bound(address + bytes);
  if (after != regions_.begin()) {
    const auto& [begin, region] = *std::prev(after);
    if (begin + region.bytes > address) {
      return absl::FailedPreconditionError(absl::StrCat(
          "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED: ", Hex(address),
          region.kind == Kind::kHost ? " is registered already"
                                     : " is device memory"));
    }
  }
  const uint64_t whole = (bytes + kPage - 1) / kPage * kPage;
  if (msync(host, whole, MS_ASYNC) != 0) {
    return Invalid(
        absl::StrCat(bytes, " bytes at ", Hex(address), " are not mapped"));
  }
  regions_.emplace(address, Region{Kind::kHost, bytes});
  return address;
}

absl::StatusOr<Piece> FakeMemory::Registered(void* host) const {
  const auto region = regions_.find(reinterpret_cast<Address>(host));
  if (region == regions_.end() || region->second.kind != Kind::kHost) {
    return absl::InvalidArgumentError(absl::StrCat(
        "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED: ",
        Hex(reinterpret_cast<Address>(host)), " is not registered"));
  }
  return Piece{static_cast<std::byte*>(host), region->second.bytes};
}

void FakeMemory::UnregisterHost(void* host) {
  regions_.erase(reinterpret_cast<Address>(host));
}

absl::StatusOr<Piece> FakeMemory::Find(const char* what, Address address,
                                       uint64_t bytes,
                                       uint64_t alignment) const {
  if (address % alignment != 0) {
    return Invalid(absl::StrCat(what, " at ", Hex(address),
                                " is not aligned to ", alignment, " bytes"));
  }
  if (bytes == 0) return Piece{reinterpret_cast<std::byte*>(address)};
  const auto region = Containing(address);
  if (region == regions_.end()) {
    return Invalid(
        absl::StrCat(what, " at ", Hex(address),
                     " is neither device memory nor registered host memory"));
  }
  const uint64_t offset = address - region->first;
  if (region->second.kind == Kind::kFreed) {
    return absl::FailedPreconditionError(
        absl::StrCat("CUDA_ERROR_INVALID_VALUE: ", what, " at ", Hex(address),
                     " is in memory that was freed"));
  }
  if (bytes > region->second.bytes - offset) {
    return Invalid(absl::StrCat(what, " at ", Hex(address), ", ", bytes,
                                " bytes, ends outside of its allocation of ",
                                region->second.bytes, " bytes at ",
                                Hex(region->first)));
  }
  return Piece{reinterpret_cast<std::byte*>(address), bytes,
               region->second.memory, offset};
}

FakeMemory::Regions::const_iterator FakeMemory::Containing(
    Address address) const {
  auto region = regions_.upper_bound(address);
  if (region == regions_.begin()) return regions_.end();
  --region;
  return address - region->first < region->second.bytes ? region
                                                        : regions_.end();
}

void FakeMemory::Vanish() {
  for (auto& [address, region] : regions_) {
    if (region.kind == Kind::kOwn || region.kind == Kind::kImported) {
      TakeAccess(region).IgnoreError();
    }
  }
}

}  // namespace maypole::gpu
