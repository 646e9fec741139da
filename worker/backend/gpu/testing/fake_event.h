// FakeEvent: an event of a fake Gpu, or one of another process.
//
// Purpose: counts the records that were issued, and remembers which of the last
// 1024 are done, and when: a wait is for one record, whatever is recorded
// later.
//
// Thread contract: any thread; atomics in a page, which processes may share.
#ifndef MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_EVENT_H_
#define MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_EVENT_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/system/fd.h"
#include "worker/backend/gpu/gpu.h"

namespace maypole::gpu {

class FakeEvent {
 public:
  // process: the fake process that makes it.
  static absl::StatusOr<std::shared_ptr<FakeEvent>> Create(EventUse use,
                                                           uint64_t process);
  static absl::StatusOr<std::shared_ptr<FakeEvent>> Import(
      const EventHandle& handle, uint64_t process);
  absl::StatusOr<EventHandle> Export() const;

  EventUse use() const { return use_; }
  bool imported() const { return imported_; }
  // kFailedPrecondition: its maker, another process, has destroyed it.
  absl::Status Usable() const;
  // Importers get to know that it must not be used any more.
  void Destroy();

  // The number of a new record, and of the last one (0: none yet).
  uint64_t Issue();
  uint64_t issued() const;
  void SetDone(uint64_t record, int64_t now);
  bool IsDone(uint64_t record) const;
  // When the last record was done.
  int64_t Time() const;

 private:
  struct Page;
  FakeEvent(EventUse use, bool imported, Fd fd, Mapping mapping);

  const EventUse use_;
  const bool imported_;
  const Fd fd_;  // of what it has made for others
  const Mapping mapping_;
  Page* const page_;
};

}  // namespace maypole::gpu

#endif  // MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_EVENT_H_
