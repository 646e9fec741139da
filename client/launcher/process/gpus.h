// The GPUs of this host, to bind ranks to (maypolerun --bind-gpus).
//
// Purpose: CUDA itself is not asked, because a process that has called it keeps
// memory on the GPUs.
//
// Thread contract: pure, but for reading the given directory.
#ifndef MAYPOLE_CLIENT_LAUNCHER_PROCESS_GPUS_H_
#define MAYPOLE_CLIENT_LAUNCHER_PROCESS_GPUS_H_

#include <string>
#include <vector>

#include "common/status.h"

namespace maypole::launcher {

// As CUDA_VISIBLE_DEVICES names them: its entries, if it is set (visible is not
// null), else "0", "1", ... for each directory in `driver_directory`
// (kDriverGpus). kNotFound if there are none.
inline constexpr char kDriverGpus[] = "/proc/driver/nvidia/gpus";
Status FindGpus(const char* visible, const std::string& driver_directory,
                std::vector<std::string>* gpus);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_PROCESS_GPUS_H_
