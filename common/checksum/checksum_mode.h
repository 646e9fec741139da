// ChecksumMode: whether the ranks of a job compare the checksums of their
// results, and what happens on a difference (docs/operating.md, "Checksums").
//
// Purpose: the one rule for `maypolerun --checksums` and MAYPOLE_CHECKSUMS,
// which the option sets for the ranks. If ranks want different modes, the
// greatest one holds for the whole job.
//
// Thread contract: a pure function.
#ifndef MAYPOLE_COMMON_CHECKSUM_CHECKSUM_MODE_H_
#define MAYPOLE_COMMON_CHECKSUM_CHECKSUM_MODE_H_

#include <cstdint>
#include <string_view>

#include "common/status.h"

namespace maypole {

inline constexpr char kChecksumVariable[] = "MAYPOLE_CHECKSUMS";

enum class ChecksumMode : uint32_t {
  kOff = 0,
  kWarn = 1,  // a difference is reported, and the job continues
  kFail = 2,  // a difference ends the epoch
};
inline constexpr uint32_t kMostChecksumMode = 2;

// `name`: of the option or variable, for the error. An empty text is off.
Status ParseChecksumMode(std::string_view name, std::string_view text,
                         ChecksumMode* out);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_CHECKSUM_CHECKSUM_MODE_H_
