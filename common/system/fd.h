// Fd owns one file descriptor, Mapping one mmap. Both are move only. No other
// code calls close() or munmap() directly.
//
// Thread contract: values; not synchronized.
#ifndef MAYPOLE_COMMON_SYSTEM_FD_H_
#define MAYPOLE_COMMON_SYSTEM_FD_H_

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <utility>

namespace maypole {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  Fd& operator=(Fd&& o) noexcept {
    if (this != &o) {
      Reset();
      fd_ = std::exchange(o.fd_, -1);
    }
    return *this;
  }
  ~Fd() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

class Mapping {
 public:
  Mapping() = default;
  Mapping(void* address, size_t size) : address_(address), size_(size) {}
  Mapping(Mapping&& o) noexcept
      : address_(std::exchange(o.address_, nullptr)),
        size_(std::exchange(o.size_, 0)) {}
  Mapping& operator=(Mapping&& o) noexcept {
    if (this != &o) {
      Reset();
      address_ = std::exchange(o.address_, nullptr);
      size_ = std::exchange(o.size_, 0);
    }
    return *this;
  }
  ~Mapping() { Reset(); }

  std::byte* data() const { return static_cast<std::byte*>(address_); }
  size_t size() const { return size_; }
  void Reset() {
    if (address_ != nullptr) ::munmap(std::exchange(address_, nullptr), size_);
  }

 private:
  void* address_ = nullptr;
  size_t size_ = 0;
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_SYSTEM_FD_H_
