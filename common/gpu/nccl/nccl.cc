#include "common/gpu/nccl/nccl.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace maypole::nccl {
namespace {

constexpr char kLibrary[] = "libnccl.so.2";

struct CloseLibrary {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, CloseLibrary>;

Status Unavailable(std::string message) {
  return Status(Code::kUnavailable, std::move(message));
}

std::string OneLine(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// The file that the dynamic linker has opened.
std::string PathOf(void* library) {
  link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return {};
  return map->l_name;
}

// Fills the members of an Nccl. Keeps the name of the first missing one.
class Resolver {
 public:
  Resolver(void* library, Nccl* nccl) : library_(library), nccl_(nccl) {}

  template <typename Function>
  void Find(Function Nccl::*member, const char* name) {
    const auto function = reinterpret_cast<Function>(dlsym(library_, name));
    if (function == nullptr && missing_ == nullptr) missing_ = name;
    nccl_->*member = function;
  }
  const char* missing() const { return missing_; }

 private:
  void* const library_;
  Nccl* const nccl_;
  const char* missing_ = nullptr;
};

// Called first, so that an old version is reported as old.
Status FindVersion(void* library, Nccl* nccl) {
  Resolver resolver(library, nccl);
  resolver.Find(&Nccl::ncclGetVersion, "ncclGetVersion");
  if (resolver.missing() != nullptr) {
    return Unavailable(nccl->path + " is not NCCL: it has no ncclGetVersion");
  }
  if (nccl->ncclGetVersion(&nccl->version) != ncclSuccess) {
    return Unavailable("NCCL at " + nccl->path + " does not say its version");
  }
  if (nccl->version >= kMinNcclVersion) return Status();
  return Unavailable("NCCL " + NcclVersion(nccl->version) + " at " +
                     nccl->path + " is too old; it must be " +
                     NcclVersion(kMinNcclVersion) + " or newer");
}

Status FindFunctions(void* library, Nccl* nccl) {
  Resolver r(library, nccl);
  r.Find(&Nccl::ncclGetUniqueId, "ncclGetUniqueId");
  r.Find(&Nccl::ncclGetErrorString, "ncclGetErrorString");
  r.Find(&Nccl::ncclGetLastError, "ncclGetLastError");
  r.Find(&Nccl::ncclCommInitRankConfig, "ncclCommInitRankConfig");
  r.Find(&Nccl::ncclCommAbort, "ncclCommAbort");
  r.Find(&Nccl::ncclCommGetAsyncError, "ncclCommGetAsyncError");
  r.Find(&Nccl::ncclGroupStart, "ncclGroupStart");
  r.Find(&Nccl::ncclGroupEnd, "ncclGroupEnd");
  r.Find(&Nccl::ncclAllReduce, "ncclAllReduce");
  r.Find(&Nccl::ncclBroadcast, "ncclBroadcast");
  r.Find(&Nccl::ncclReduce, "ncclReduce");
  r.Find(&Nccl::ncclReduceScatter, "ncclReduceScatter");
  r.Find(&Nccl::ncclAllGather, "ncclAllGather");
  r.Find(&Nccl::ncclSend, "ncclSend");
  r.Find(&Nccl::ncclRecv, "ncclRecv");
  if (r.missing() == nullptr) return Status();
  return Unavailable(nccl->path + " is not NCCL: it has no " + r.missing());
}

Status Load(const std::string& path, Nccl* nccl) {
  const char* const name = path.empty() ? kLibrary : path.c_str();
  Library library(dlopen(name, RTLD_NOW | RTLD_LOCAL));
  if (library == nullptr) {
    const char* const why = dlerror();
    return Unavailable(std::string("NCCL cannot be loaded: ") +
                       OneLine(why != nullptr ? why : name));
  }
  nccl->path = PathOf(library.get());
  if (nccl->path.empty()) nccl->path = name;
  Status s = FindVersion(library.get(), nccl);
  if (s.ok()) s = FindFunctions(library.get(), nccl);
  if (!s.ok()) return s;
  static_cast<void>(library.release());  // loaded until the process ends
  return Status();
}

Code CodeOf(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
    case ncclInProgress:
      return Code::kOk;
    case ncclInvalidArgument:
      return Code::kInvalidArgument;
    case ncclInvalidUsage:
      return Code::kFailedPrecondition;
    case ncclSystemError:
    case ncclRemoteError:
      return Code::kUnavailable;
    default:
      return Code::kInternal;
  }
}

// Stops at the first library whose file is NCCL's.
int TakeNccl(dl_phdr_info* info, size_t, void* out) {
  const std::string_view path = info->dlpi_name;
  const std::string_view name = path.substr(path.rfind('/') + 1);
  if (!name.starts_with(kLibrary)) return 0;
  *static_cast<std::string*>(out) = path;
  return 1;
}

}  // namespace

Status OpenNccl(const std::string& path, const Nccl** nccl) {
  static std::mutex mutex;
  // Never destroyed: other threads may use NCCL while the process ends.
  static auto& opened = *new std::map<std::string, Nccl>;
  std::lock_guard lock(mutex);
  auto it = opened.find(path);
  if (it == opened.end()) {
    Nccl loaded = {};
    if (Status s = Load(path, &loaded); !s.ok()) return s;
    it = opened.emplace(path, std::move(loaded)).first;
  }
  *nccl = &it->second;
  return Status();
}

std::optional<LoadedNccl> FindLoadedNccl() {
  LoadedNccl found;
  if (dl_iterate_phdr(&TakeNccl, &found.path) == 0) return std::nullopt;
  const Library library(
      dlopen(found.path.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD));
  if (library == nullptr) return std::nullopt;  // unloaded since
  const auto get_version = reinterpret_cast<decltype(Nccl::ncclGetVersion)>(
      dlsym(library.get(), "ncclGetVersion"));
  if (get_version == nullptr || get_version(&found.version) != ncclSuccess) {
    return std::nullopt;
  }
  return found;
}

std::string NcclVersion(int number) {
  // Before 2.9: 2708 is 2.7.8.
  const int major = number < 10000 ? 1000 : 10000;
  return std::to_string(number / major) + "." +
         std::to_string(number % major / 100) + "." +
         std::to_string(number % 100);
}

Status NcclStatus(const Nccl& nccl, ncclResult_t result,
                  std::string_view call) {
  const Code code = CodeOf(result);
  if (code == Code::kOk) return Status();
  const char* const what = nccl.ncclGetErrorString(result);
  const char* const last = nccl.ncclGetLastError(nullptr);
  std::string text = std::string(call) + ": ";
  text += what != nullptr ? std::string(what)
                          : "NCCL error " + std::to_string(result);
  if (last != nullptr && *last != '\0') text += std::string(": ") + last;
  return Status(code, OneLine(std::move(text)));
}

}  // namespace maypole::nccl
