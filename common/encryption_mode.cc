#include "common/encryption_mode.h"

#include <string>

namespace maypole {

std::string_view Name(EncryptionMode mode) {
  switch (mode) {
    case EncryptionMode::kOff:
      return "off";
    case EncryptionMode::kOn:
      return "on";
    case EncryptionMode::kRequire:
      return "require";
  }
  return "unknown";
}

Status ParseEncryptionMode(std::string_view name, std::string_view text,
                           EncryptionMode* mode) {
  *mode = EncryptionMode::kOff;
  if (text.empty()) return Status();
  for (const auto known :
       {EncryptionMode::kOff, EncryptionMode::kOn, EncryptionMode::kRequire}) {
    if (text != Name(known)) continue;
    *mode = known;
    return Status();
  }
  return Status(Code::kInvalidArgument,
                std::string(name) + "='" + std::string(text) +
                    "': expected off, on (nodes that both encrypt do) or "
                    "require (a node that does not encrypt is refused)");
}

}  // namespace maypole
