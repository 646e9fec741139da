// StatusOr: a value, or the error that explains why there is none, for code
// that is linked into libmaypole (see status.h).
//
//   StatusOr<uint32_t> gpu = queues.Find(uuid);
//   if (!gpu.ok()) return gpu.status();
//   Use(*gpu);
//
// Thread contract: a value; not synchronized.
// Invariant: there is a value exactly if status() is OK.
#ifndef MAYPOLE_COMMON_STATUS_OR_H_
#define MAYPOLE_COMMON_STATUS_OR_H_

#include <cassert>
#include <optional>
#include <utility>

#include "common/status.h"

namespace maypole {

template <typename T>
class [[nodiscard]] StatusOr {
 public:
  // Implicit, so that a function can return either.
  StatusOr(Status error) : status_(std::move(error)) { assert(!status_.ok()); }
  StatusOr(T value) : value_(std::move(value)) {}

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  // Only if ok().
  const T& operator*() const& { return *value_; }
  T& operator*() & { return *value_; }
  T&& operator*() && { return *std::move(value_); }
  const T* operator->() const { return &*value_; }
  T* operator->() { return &*value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_STATUS_OR_H_
