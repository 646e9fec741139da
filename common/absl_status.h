// Conversions between Status (libmaypole) and absl::Status (worker,
// coordinator).
//
// Thread contract: pure functions.
#ifndef MAYPOLE_COMMON_ABSL_STATUS_H_
#define MAYPOLE_COMMON_ABSL_STATUS_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/status.h"
#include "common/status_or.h"

namespace maypole {

inline absl::Status ToAbsl(const Status& s) {
  return absl::Status(static_cast<absl::StatusCode>(s.code()), s.message());
}
template <typename T>
absl::StatusOr<T> ToAbsl(StatusOr<T> s) {
  if (!s.ok()) return ToAbsl(s.status());
  return *std::move(s);
}
inline Status FromAbsl(const absl::Status& s) {
  return Status(static_cast<Code>(s.code()), std::string(s.message()));
}

}  // namespace maypole

#endif  // MAYPOLE_COMMON_ABSL_STATUS_H_
