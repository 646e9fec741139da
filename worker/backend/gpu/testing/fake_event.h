// FakeEvent: an event of a fake Gpu, own or imported.
//
// Purpose: counts the issued records, and remembers which of the last 1024 are
// done, and when. A wait is for one record, whatever is recorded later.
//
// Thread contract: any thread; atomics in a page that processes may share.
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
  // `process` is the fake process that creates the event.
  static absl::StatusOr<std::shared_ptr<FakeEvent>> Create(EventUse use,
                                                           uint64_t process);
  static absl::StatusOr<std::shared_ptr<FakeEvent>> Import(
      const EventHandle& handle, uint64_t process);
  absl::StatusOr<EventHandle> Export() const;

  EventUse use() const { return use_; }
  bool imported() const { return imported_; }
  // Returns kFailedPrecondition if another process has made the event and has
  // destroyed it.
  absl::Status Usable() const;
  // Marks the event as destroyed, for importers.
  void Destroy();

  // Issue() returns the number of a new record; issued() that of the last one,
  // or 0.
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
  const Fd fd_;  // kept open for importers
  const Mapping mapping_;
  Page* const page_;
};

}  // namespace maypole::gpu

#endif  // MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_EVENT_H_
