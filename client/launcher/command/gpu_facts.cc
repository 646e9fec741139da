// FindGpuFacts(): queries the system.
#include <cstdlib>
#include <fstream>

#include "client/launcher/command/gpu_info.h"
#include "client/launcher/command/python.h"
#include "common/gpu/driver.h"
#include "common/gpu/gpu.h"
#include "common/gpu/kernels/built.h"
#include "common/gpu/nccl/nccl.h"
#include "common/wire/job_variables.h"

namespace maypole::launcher {
namespace {

constexpr char kVersionFile[] = "/proc/driver/nvidia/version";
// Prints where the package nvidia-nccl has its library; imports nothing of it.
constexpr char kWhereIsNccl[] =
    "import importlib.util as u\n"
    "s = u.find_spec('nvidia') and u.find_spec('nvidia.nccl')\n"
    "print(s.submodule_search_locations[0] + '/lib/libnccl.so.2' if s else "
    "'', end='')";

// The first word like 570.86.10 in the driver's own text.
std::string DriverVersion() {
  std::ifstream file(kVersionFile);
  for (std::string word; file >> word;) {
    if (word.find_first_not_of("0123456789.") == word.npos &&
        word.find('.') != word.npos) {
      return word;
    }
  }
  return {};
}

void AskDriver(GpuFacts* facts) {
  const cuda::Driver* driver = nullptr;
  facts->driver = cuda::LoadDriver(&driver);
  if (!facts->driver.ok()) return;
  int number = 0;
  if (driver->cuDriverGetVersion(&number) == cuda::CUDA_SUCCESS) {
    facts->cuda_version = cuda::CudaVersion(number);
  }
  facts->driver_version = DriverVersion();
  int count = 0;
  facts->driver = cuda::CudaStatus(*driver, driver->cuDeviceGetCount(&count),
                                   "cuDeviceGetCount");
  for (int i = 0; i < count && facts->driver.ok(); ++i) {
    cuda::CUdevice device = 0;
    cuda::CUuuid uuid = {};
    char name[256] = {};
    cuda::CUresult result = driver->cuDeviceGet(&device, i);
    if (result == cuda::CUDA_SUCCESS) {
      result = driver->cuDeviceGetName(name, sizeof(name) - 1, device);
    }
    if (result == cuda::CUDA_SUCCESS) {
      result = driver->cuDeviceGetUuid(&uuid, device);
    }
    const Status s = cuda::CudaStatus(*driver, result, "asking a GPU");
    int mps = 0;  // also if the driver does not know the attribute
    driver->cuDeviceGetAttribute(&mps, cuda::CU_DEVICE_ATTRIBUTE_MPS_ENABLED,
                                 device);
    facts->gpus.push_back(s.ok() ? name + (", " + cuda::UuidText(uuid)) +
                                       (mps == 1 ? ", used through MPS" : "")
                                 : s.message());
  }
}

NcclFacts AskNccl(const std::string& path) {
  const nccl::Nccl* library = nullptr;
  NcclFacts facts = {.status = nccl::OpenNccl(path, &library), .path = path};
  if (!facts.status.ok()) return facts;
  facts.path = library->path;
  facts.version = nccl::NcclVersion(library->version);
  return facts;
}

NcclFacts AskPython() {
  NcclFacts none = {.status = Status(Code::kNotFound,
                                     "python3 on PATH has no package "
                                     "nvidia-nccl")};
  const std::string path = OutputOfPython(kWhereIsNccl);
  return path.empty() ? none : AskNccl(path);
}

}  // namespace

GpuFacts FindGpuFacts() {
  GpuFacts facts;
  AskDriver(&facts);
  const auto code = cuda::CodeArchitectures(), ptx = cuda::PtxArchitectures();
  facts.code.assign(code.begin(), code.end());
  facts.ptx.assign(ptx.begin(), ptx.end());
  if (const char* const library = std::getenv(session::kNcclLibraryVariable)) {
    facts.library = library;
    if (facts.library != "none") facts.named = AskNccl(library);
  }
  facts.linkers = AskNccl("");
  facts.pythons = AskPython();
  return facts;
}

}  // namespace maypole::launcher
