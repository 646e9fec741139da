#include "client/gpu/gpu_site.h"

#include <string>
#include <utility>

namespace maypole {

Status ParseGpuSite(std::string_view name, std::string_view text,
                    GpuSite* out) {
  constexpr std::pair<std::string_view, GpuSite> kSites[] = {
      {"", GpuSite::kAuto},       {"auto", GpuSite::kAuto},
      {"agent", GpuSite::kAgent}, {"client", GpuSite::kClient},
      {"host", GpuSite::kHost},
  };
  for (const auto& [word, site] : kSites) {
    if (word != text) continue;
    *out = site;
    return Status();
  }
  return Status(Code::kInvalidArgument,
                std::string(name) + "='" + std::string(text) +
                    "': expected auto, agent, client, or host (copies through "
                    "host memory)");
}

}  // namespace maypole
