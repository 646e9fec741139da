// Status: the outcome of a call, for code that is linked into libmaypole.
//
// libmaypole is loaded into the user's process and must not bring its own
// Abseil (TensorFlow has one), so client/, common/ and common/gpu/runner/ use this
// small type with gRPC's codes. The rest of worker/ and coordinator/ use
// absl::Status; common/absl_status.h converts.
//
// Thread contract: a value; not synchronized.
#ifndef MAYPOLE_COMMON_STATUS_H_
#define MAYPOLE_COMMON_STATUS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace maypole {

// The numbers are gRPC's; maypole_status of the C ABI has the same.
enum class Code : uint8_t {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message)
      : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

  // Keeps the first error: takes `s` if this is OK.
  void Update(Status s) {
    if (ok()) *this = std::move(s);
  }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

// "<what>: <strerror(err)>", with the code that corresponds to err.
Status ErrnoStatus(int err, std::string_view what);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_STATUS_H_
