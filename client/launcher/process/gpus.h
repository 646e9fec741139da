// Lists the GPUs of this host, for binding ranks to them (maypolerun
// --bind-gpus).
//
// Purpose: works without CUDA, because a process that has called it keeps
// memory on the GPUs.
//
// Thread contract: pure, except for reading the given directory.
#ifndef MAYPOLE_CLIENT_LAUNCHER_PROCESS_GPUS_H_
#define MAYPOLE_CLIENT_LAUNCHER_PROCESS_GPUS_H_

#include <string>
#include <vector>

#include "common/status.h"

namespace maypole::launcher {

// Names GPUs as CUDA_VISIBLE_DEVICES does: its entries, if it is set (visible
// is not null), else "0", "1", ... for each directory in `driver_directory`
// (kDriverGpus). kNotFound if there are none.
inline constexpr char kDriverGpus[] = "/proc/driver/nvidia/gpus";
Status FindGpus(const char* visible, const std::string& driver_directory,
                std::vector<std::string>* gpus);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_PROCESS_GPUS_H_
