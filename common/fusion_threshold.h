// Reads the fusion threshold from the environment.
//
// Thread contract: a pure function of `get`.
#ifndef MAYPOLE_COMMON_FUSION_THRESHOLD_H_
#define MAYPOLE_COMMON_FUSION_THRESHOLD_H_

#include <cstdint>
#include <string>

#include "common/limits.h"
#include "common/parse.h"
#include "common/status.h"

namespace maypole {

// Reads MAYPOLE_FUSION_THRESHOLD or, if it is not set,
// HOROVOD_FUSION_THRESHOLD: a number of bytes, 0 for no fusion. *out becomes -1
// if neither is set. `get` works like getenv (null if unset); an empty value
// counts as unset.
template <typename Get>
Status ReadFusionThreshold(const Get& get, int64_t* out) {
  *out = -1;
  for (const char* name :
       {"MAYPOLE_FUSION_THRESHOLD", "HOROVOD_FUSION_THRESHOLD"}) {
    const char* text = get(name);
    if (text == nullptr || *text == 0) continue;
    constexpr auto kMost = static_cast<int64_t>(kMaxTensorBytes);
    if (!ParseNumber(text, 0, kMost, out)) {
      return Status(Code::kInvalidArgument,
                    std::string(name) + "='" + text +
                        "': must be a number of bytes from 0 (no fusion) to " +
                        std::to_string(kMost));
    }
    return Status();
  }
  return Status();
}

}  // namespace maypole

#endif  // MAYPOLE_COMMON_FUSION_THRESHOLD_H_
