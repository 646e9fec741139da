// The fusion threshold that the environment asks for.
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

// MAYPOLE_FUSION_THRESHOLD, or HOROVOD_FUSION_THRESHOLD if that is not set:
// bytes, 0 for no fusion. *out stays -1 if neither is set. get: as getenv, null
// if unset; empty counts as unset.
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
                        "': expected bytes, a number from 0 (no fusion) to " +
                        std::to_string(kMost));
    }
    return Status();
  }
  return Status();
}

}  // namespace maypole

#endif  // MAYPOLE_COMMON_FUSION_THRESHOLD_H_
