// FindGpuFacts(): what the system says.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "client/launcher/command/gpu_info.h"
#include "client/launcher/process/process.h"
#include "common/gpu/driver.h"
#include "common/gpu/gpu.h"
#include "common/gpu/kernels/built.h"
#include "common/gpu/nccl/nccl.h"
#include "common/system/fd.h"
#include "common/system/spawn.h"
#include "common/wire/job_variables.h"

namespace maypole::launcher {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kVersionFile[] = "/proc/driver/nvidia/version";
constexpr std::chrono::seconds kPythonTimeout{10};
constexpr size_t kMaxPath = 4096;
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
    int mps = 0;  // also if the driver does not know the question
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

// Waits until the child ends, which is killed at the deadline.
int StatusOf(pid_t child, Clock::time_point deadline) {
  int status = 0;
  pid_t ended = 0;
  while ((ended = waitpid(child, &status, WNOHANG)) == 0 &&
         Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (ended != 0) return status;
  kill(child, SIGKILL);
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

// What a program prints, without an end of line. Empty if it takes too long.
std::string OutputOf(SpawnOptions options) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {};
  const Fd read_end(ends[0]);
  Fd write_end(ends[1]);
  options.descriptors = {{.fd = kDevNull, .number = 0},
                         {.fd = write_end.get(), .number = 1},
                         {.fd = kDevNull, .number = 2}};
  Child child;
  if (!Spawn(options, &child).ok()) return {};
  write_end.Reset();
  std::string out;
  Clock::time_point deadline = Clock::now() + kPythonTimeout;
  for (bool ends_well = false; !ends_well;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - Clock::now());
    pollfd p{read_end.get(), POLLIN, 0};
    char buffer[kMaxPath];
    const bool ready =
        left.count() > 0 && poll(&p, 1, static_cast<int>(left.count())) > 0;
    const ssize_t n = ready ? read(read_end.get(), buffer, sizeof(buffer)) : -1;
    if (n < 0 || out.size() + static_cast<size_t>(n) > kMaxPath) {
      out.clear();
      deadline = Clock::now();
      break;
    }
    out.append(buffer, static_cast<size_t>(n));
    ends_well = n == 0;
  }
  return StatusOf(child.pid, deadline) == 0 ? out : std::string();
}

NcclFacts AskPython() {
  NcclFacts none = {.status = Status(Code::kNotFound,
                                     "python3 on PATH has no package "
                                     "nvidia-nccl")};
  std::string python;
  if (!FindProgram("python3", &python).ok()) return none;
  const std::string path = OutputOf(
      {.program = python, .arguments = {"python3", "-c", kWhereIsNccl}});
  return path.empty() ? none : AskNccl(path);
}

}  // namespace

GpuFacts FindGpuFacts() {
  GpuFacts facts;
  AskDriver(&facts);
  facts.kernels = cuda::kKernelsAreBuilt;
  if (const char* const library = std::getenv(session::kNcclLibraryVariable)) {
    facts.library = library;
    if (facts.library != "none") facts.named = AskNccl(library);
  }
  facts.linkers = AskNccl("");
  facts.pythons = AskPython();
  return facts;
}

}  // namespace maypole::launcher
