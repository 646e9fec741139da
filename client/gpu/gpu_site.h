// GpuSite: where operations on CUDA tensors run.
//
// Purpose: parses both `maypolerun --gpu-site` and MAYPOLE_GPU_SITE, which the
// option sets for the ranks.
//
//   auto     each rank chooses (site_choice.h): client where each rank of the
//            node has a GPU of its own and NCCL can be used, else agent
//   agent    in the executor of the node, on GPU memory that ranks share
//            with it (docs/gpu.md); what it cannot do goes through host memory
//   client   NCCL in the training process, at the executor's command; what it
//            cannot do goes through host memory
//   host     copied through host memory, as MAYPOLE_GPU_MEMORY=host
//
// Thread contract: a pure function.
#ifndef MAYPOLE_CLIENT_GPU_GPU_SITE_H_
#define MAYPOLE_CLIENT_GPU_GPU_SITE_H_

#include <cstdint>
#include <string_view>

#include "common/status.h"

namespace maypole {

inline constexpr char kGpuSiteVariable[] = "MAYPOLE_GPU_SITE";

enum class GpuSite : uint8_t { kAuto, kAgent, kClient, kHost };

// `name`: of the option or variable, for the error. An empty text is auto.
Status ParseGpuSite(std::string_view name, std::string_view text, GpuSite* out);

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_GPU_GPU_SITE_H_
