// Status: the outcome of a call, for what is linked into libmaypole.
//
// libmaypole lives in other people's processes and brings no Abseil with it
// (TensorFlow has its own), so client/ and common/ use this small type with
// gRPC's codes; worker/ and coordinator/ use absl::Status, and
// common/absl_status.h converts.
//
// Thread contract: a value; not synchronized.
#ifndef MAYPOLE_COMMON_STATUS_H_
#define MAYPOLE_COMMON_STATUS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace maypole {

// gRPC's numbers (and maypole_status of the C ABI).
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

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

// "<what>: <strerror(err)>" with a code that fits.
Status ErrnoStatus(int err, std::string_view what);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_STATUS_H_
