#include "client/launcher/process/gpus.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_split.h"

namespace maypole::launcher {

Status FindGpus(const char* visible, const std::string& driver_directory,
                std::vector<std::string>* gpus) {
  gpus->clear();
  if (visible != nullptr) {
    *gpus = absl::StrSplit(visible, ',', absl::SkipEmpty());
    if (!gpus->empty()) return Status();
    return Status(Code::kNotFound,
                  "--bind-gpus: CUDA_VISIBLE_DEVICES is empty on this host, "
                  "which hides all GPUs; unset it or leave --bind-gpus out");
  }
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(driver_directory, error)) {
    static_cast<void>(entry);
    gpus->push_back(std::to_string(gpus->size()));
  }
  if (!gpus->empty()) return Status();
  return Status(
      Code::kNotFound,
      "--bind-gpus: there is no NVIDIA GPU on this host (nothing in " +
          driver_directory +
          "); set CUDA_VISIBLE_DEVICES or leave --bind-gpus out");
}

}  // namespace maypole::launcher
