// EncryptionMode: whether data between the nodes of a job is encrypted.
//
//   EncryptionMode mode;
//   Status s = ParseEncryptionMode("--encrypt", "require", &mode);
//
// Thread contract: pure functions.
#ifndef MAYPOLE_COMMON_ENCRYPTION_MODE_H_
#define MAYPOLE_COMMON_ENCRYPTION_MODE_H_

#include <cstdint>
#include <string_view>

#include "common/status.h"

namespace maypole {

// The job variable (common/wire/job_variables.h) that sets the mode.
inline constexpr char kEncryptionVariable[] = "MAYPOLE_NETWORK_ENCRYPTION";

// In ascending order: of two that apply to a node, the greater one counts. The
// values travel between nodes.
enum class EncryptionMode : uint8_t {
  kOff = 0,
  kOn = 1,       // encrypted with nodes that also encrypt; with others in the
                 // clear
  kRequire = 2,  // nodes that do not encrypt are refused
};

std::string_view Name(EncryptionMode mode);

// text: off, on or require; empty: off. name: where the text comes from, for
// the error.
Status ParseEncryptionMode(std::string_view name, std::string_view text,
                           EncryptionMode* mode);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_ENCRYPTION_MODE_H_
