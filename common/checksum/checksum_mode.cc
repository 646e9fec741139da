#include "common/checksum/checksum_mode.h"

#include <string>
#include <utility>

namespace maypole {

Status ParseChecksumMode(std::string_view name, std::string_view text,
                         ChecksumMode* out) {
  constexpr std::pair<std::string_view, ChecksumMode> kModes[] = {
      {"", ChecksumMode::kOff},
      {"0", ChecksumMode::kOff},
      {"1", ChecksumMode::kFail},
      {"warn", ChecksumMode::kWarn},
  };
  for (const auto& [word, mode] : kModes) {
    if (word != text) continue;
    *out = mode;
    return Status();
  }
  return Status(Code::kInvalidArgument,
                std::string(name) + "='" + std::string(text) +
                    "': expected 1 (results that differ end the job), warn "
                    "(they are only reported), or 0 (they are not compared)");
}

}  // namespace maypole
