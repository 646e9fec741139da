#include "worker/backend/gpu/testing/fake_event.h"

#include <string.h>
#include <unistd.h>

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/backend/gpu/testing/fake_shared.h"

namespace maypole::gpu {
namespace {

constexpr uint64_t kMagic = 0x6d61797066616b33;  // "maypfak3"
constexpr uint64_t kRecords = 1024;

// The content of an EventHandle.
struct Where {
  uint64_t magic;
  uint64_t event;  // Page::event
  int32_t pid, fd;
};
static_assert(sizeof(Where) <= sizeof(EventHandle));

}  // namespace

struct FakeEvent::Page {
  uint64_t magic;
  uint64_t event;  // a random number
  uint64_t process;
  std::atomic<uint32_t> destroyed;
  std::atomic<uint64_t> issued;
  // Indexed by record % kRecords: the last such record that is done.
  std::atomic<uint64_t> done[kRecords];
  std::atomic<int64_t> times[kRecords];
};

FakeEvent::FakeEvent(EventUse use, bool imported, Fd fd, Mapping mapping)
    : use_(use),
      imported_(imported),
      fd_(std::move(fd)),
      mapping_(std::move(mapping)),
      page_(reinterpret_cast<Page*>(mapping_.data())) {}

absl::StatusOr<std::shared_ptr<FakeEvent>> FakeEvent::Create(EventUse use,
                                                             uint64_t process) {
  absl::StatusOr<Fd> fd = MakeSharedFile("maypole-fake-event", sizeof(Page));
  if (!fd.ok()) return fd.status();
  absl::StatusOr<Mapping> mapping = MapShared(fd->get(), sizeof(Page));
  if (!mapping.ok()) return mapping.status();
  if (use != EventUse::kInterprocess) fd->Reset();
  std::shared_ptr<FakeEvent> event(
      new FakeEvent(use, false, *std::move(fd), *std::move(mapping)));
  event->page_->magic = kMagic;
  event->page_->event = RandomNumber();
  event->page_->process = process;
  return event;
}

absl::StatusOr<EventHandle> FakeEvent::Export() const {
  if (use_ != EventUse::kInterprocess || imported_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "CUDA_ERROR_INVALID_VALUE: the event ",
        imported_ ? "was imported" : "was not made with kInterprocess"));
  }
  const Where where = {
      .magic = kMagic, .event = page_->event, .pid = getpid(), .fd = fd_.get()};
  EventHandle handle = {};
  memcpy(handle.data(), &where, sizeof(where));
  return handle;
}

absl::StatusOr<std::shared_ptr<FakeEvent>> FakeEvent::Import(
    const EventHandle& handle, uint64_t process) {
  Where where;
  memcpy(&where, handle.data(), sizeof(where));
  if (where.magic != kMagic) {
    return absl::InvalidArgumentError(
        "CUDA_ERROR_INVALID_VALUE: not a handle of an event");
  }
  const absl::Status gone = absl::InvalidArgumentError(
      absl::StrCat("CUDA_ERROR_INVALID_HANDLE: process ", where.pid,
                   " has destroyed the event, or is gone"));
  const absl::StatusOr<Fd> fd = OpenFdOf(where.pid, where.fd);
  if (!fd.ok() || !IsSharedFile(fd->get(), sizeof(Page))) return gone;
  absl::StatusOr<Mapping> mapping = MapShared(fd->get(), sizeof(Page));
  if (!mapping.ok()) return mapping.status();
  std::shared_ptr<FakeEvent> event(
      new FakeEvent(EventUse::kInterprocess, true, Fd(), *std::move(mapping)));
  const Page& page = *event->page_;
  if (page.magic != kMagic || page.event != where.event ||
      page.destroyed != 0) {
    return gone;
  }
  if (page.process == process) {
    return absl::FailedPreconditionError(
        "CUDA_ERROR_INVALID_CONTEXT: the event is this process's own");
  }
  return event;
}

absl::Status FakeEvent::Usable() const {
  if (!imported_ || page_->destroyed == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "CUDA_ERROR_INVALID_HANDLE: the process that made this event has "
      "destroyed it");
}

void FakeEvent::Destroy() {
  if (!imported_) page_->destroyed = 1;
}

uint64_t FakeEvent::Issue() { return ++page_->issued; }

uint64_t FakeEvent::issued() const { return page_->issued; }

void FakeEvent::SetDone(uint64_t record, int64_t now) {
  OrderSharedMemory();
  page_->times[record % kRecords] = now;
  page_->done[record % kRecords] = record;
}

bool FakeEvent::IsDone(uint64_t record) const {
  if (record != 0 && page_->done[record % kRecords] < record) return false;
  OrderSharedMemory();
  return true;
}

int64_t FakeEvent::Time() const {
  return page_->times[page_->issued % kRecords];
}

}  // namespace maypole::gpu
