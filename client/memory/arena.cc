#include "client/memory/arena.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "common/system/memory.h"

namespace maypole {
namespace {

constexpr uint64_t kAlignment = 64;  // of the slices of a reduction

std::string Bytes(uint64_t n) { return std::to_string(n) + " bytes"; }

}  // namespace

Status Arena::Map(const Board& board, uint32_t local,
                  std::shared_ptr<Arena>* out) {
  out->reset();
  if (board.config().arena_bytes == 0) return Status();
  const uint64_t page = board.config().page_bytes;
  Fd memory(fcntl(board.fd(), F_DUPFD_CLOEXEC, 0));
  if (!memory.valid()) return ErrnoStatus(errno, "arena");
  const uint64_t offset = board.arena_offset(local);
  uint64_t bytes = board.arena_window();
  void* p = MAP_FAILED;
  while (bytes > 0) {
    p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
             memory.get(), static_cast<off_t>(offset));
    if (p != MAP_FAILED) break;
    if (errno != ENOMEM) return ErrnoStatus(errno, "cannot map an arena");
    bytes = RoundDown(bytes / 2, page);
  }
  board.LimitArenas(local, bytes);
  const bool cut = bytes < board.config().arena_bytes;
  out->reset(new Arena(std::move(memory),
                       bytes > 0 ? Mapping(p, bytes) : Mapping(), offset, page,
                       cut));
  return Status();
}

Arena::Arena(Fd memory, Mapping mapping, uint64_t file_offset, uint64_t page,
             bool cut)
    : memory_(std::move(memory)),
      mapping_(std::move(mapping)),
      file_offset_(file_offset),
      page_(page),
      cut_(cut) {
  free_[0] = mapping_.size();
}

Status Arena::Reserve(uint64_t offset, uint64_t bytes) {
  const uint64_t begin = file_offset_ + offset;
  Status s = ReservePages(memory_.get(), begin, begin + bytes);
  if (s.ok()) return s;
  return Status(
      Code::kResourceExhausted,
      "cannot make an arena tensor of " + Bytes(bytes) + ": " + s.message());
}

std::string Arena::HowToGetMore() const {
  return cut_ ? "the limit of address space leaves no more: raise ulimit -v"
              : "raise --arena_bytes of the agent";
}

Status Arena::Allocate(uint64_t bytes, std::byte** out) {
  const uint64_t size = RoundUp(std::max<uint64_t>(bytes, 1), page_);
  std::lock_guard lock(mutex_);
  const auto it =
      std::find_if(free_.begin(), free_.end(),
                   [&](const auto& hole) { return hole.second >= size; });
  if (size < bytes || it == free_.end()) {
    return Status(Code::kResourceExhausted,
                  "this rank's arena has no room for " + Bytes(bytes) + ": " +
                      std::to_string(allocated_.load()) + " of " +
                      Bytes(mapping_.size()) + " are in use (" +
                      HowToGetMore() + ")");
  }
  const uint64_t offset = it->first;
  if (Status s = Reserve(offset, size); !s.ok()) {
    // Releases the pages that were reserved.
    (void)fallocate(memory_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(file_offset_ + offset),
                    static_cast<off_t>(size));
    return s;
  }
  const uint64_t rest = it->second - size;
  free_.erase(it);
  if (rest > 0) free_[offset + size] = rest;
  used_[offset] = size;
  allocated_ += size;
  *out = mapping_.data() + offset;
  return Status();
}

void Arena::Free(std::byte* memory) {
  std::lock_guard lock(mutex_);
  const auto it = used_.find(static_cast<uint64_t>(memory - mapping_.data()));
  if (it == used_.end()) return;
  const uint64_t size = it->second;
  uint64_t begin = it->first;
  uint64_t end = begin + size;
  used_.erase(it);
  allocated_ -= size;
  if (detached_) {
    // Only private pages are released: peers may still read the shared pages,
    // and in a forked child the parent owns them. Those are released with the
    // epoch.
    (void)madvise(memory, size, MADV_DONTNEED);
  } else {
    (void)fallocate(memory_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(file_offset_ + begin),
                    static_cast<off_t>(size));
  }
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == end) {
    end += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == begin) {
      begin = before->first;
      free_.erase(before);
    }
  }
  free_[begin] = end - begin;
}

bool Arena::Find(const std::byte* begin, uint64_t bytes,
                 uint64_t* offset) const {
  const auto from = reinterpret_cast<uintptr_t>(begin);
  const auto base = reinterpret_cast<uintptr_t>(mapping_.data());
  if (from < base || bytes > mapping_.size() ||
      from - base > mapping_.size() - bytes) {
    return false;
  }
  *offset = from - base;
  return *offset % kAlignment == 0 && !detached_.load();
}

Status Arena::Detach(const std::byte* begin, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  detached_ = true;
  const uint64_t at = static_cast<uint64_t>(begin - mapping_.data());
  const uint64_t from = RoundDown(at, page_);
  const uint64_t size = RoundUp(at + bytes, page_) - from;
  if (size == 0) return Status();
  void* copy = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) return ErrnoStatus(errno, "no memory for a copy");
  std::byte* const there = mapping_.data() + from;
  std::memcpy(copy, there, size);
  if (mremap(copy, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, there) ==
      MAP_FAILED) {
    const Status s = ErrnoStatus(errno, "cannot put a copy in place");
    munmap(copy, size);
    return s;
  }
  uint64_t& copied = copies_[from];
  copied = std::max(copied, size);
  return Status();
}

void Arena::BecomePrivate() {
  detached_ = true;
  if (std::exchange(private_, true)) return;
  uint64_t begin = 0;
  const auto map_until = [&](uint64_t end) {
    if (end <= begin) return;
    (void)mmap(mapping_.data() + begin, end - begin, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED, memory_.get(),
               static_cast<off_t>(file_offset_ + begin));
  };
  for (const auto& [from, size] : copies_) {
    map_until(from);
    begin = std::max(begin, from + size);
  }
  map_until(mapping_.size());
}

// --- Memory of the user ------------------------------------------------------

namespace {

struct Registry {
  std::mutex mutex;
  std::map<void*, std::shared_ptr<Arena>> held;
  std::vector<Arena*> forking;  // those held, from BeforeFork() on
};

Registry& registry() {
  static auto& r = *new Registry;  // never destroyed: users free at exit
  return r;
}

void BeforeFork() {
  Registry& r = registry();
  r.mutex.lock();
  for (auto& [memory, arena] : r.held) {
    if (arena == nullptr) continue;
    if (!r.forking.empty() && r.forking.back() == arena.get()) continue;
    r.forking.push_back(arena.get());
    arena->BeforeFork();
  }
}

void AfterForkInParent() {
  Registry& r = registry();
  for (Arena* const arena : r.forking) arena->AfterFork();
  r.forking.clear();
  r.mutex.unlock();
}

void AfterForkInChild() {
  // If the child wrote to shared pages, it would change the rank's tensors.
  for (Arena* const arena : registry().forking) arena->BecomePrivate();
  AfterForkInParent();
}

}  // namespace

Status AllocateMemory(const std::shared_ptr<Arena>& arena, uint64_t bytes,
                      void** memory) {
  static const int once =
      pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild);
  (void)once;
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  const bool shared = arena != nullptr && !arena->detached();
  if (shared) {
    std::byte* p = nullptr;
    if (Status s = arena->Allocate(bytes, &p); !s.ok()) return s;
    *memory = p;
  } else {
    const uint64_t page = PageBytes();
    const uint64_t size = RoundUp(std::max<uint64_t>(bytes, 1), page);
    *memory = size < bytes ? nullptr : std::aligned_alloc(page, size);
    if (*memory == nullptr) {
      return Status(Code::kResourceExhausted, "no memory for " + Bytes(bytes));
    }
    std::memset(*memory, 0, size);
  }
  r.held[*memory] = shared ? arena : nullptr;
  return Status();
}

Status ReleaseMemory(void* memory) {
  if (memory == nullptr) return Status();
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  const auto it = r.held.find(memory);
  if (it == r.held.end()) {
    return Status(Code::kInvalidArgument,
                  "maypole_free: this memory is not from maypole_allocate(), "
                  "or was freed already");
  }
  if (it->second != nullptr) {
    it->second->Free(static_cast<std::byte*>(memory));
  } else {
    std::free(memory);
  }
  r.held.erase(it);
  return Status();
}

uint64_t AllocatedInArenas() {
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  uint64_t bytes = 0;
  Arena* last = nullptr;
  for (auto& [memory, arena] : r.held) {
    if (arena != nullptr && arena.get() != last) bytes += arena->allocated();
    last = arena.get();
  }
  return bytes;
}

}  // namespace maypole
