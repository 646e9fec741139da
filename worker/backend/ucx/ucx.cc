#include "worker/backend/ucx/ucx.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace maypole::worker {
namespace {

constexpr char kLibrary[] = "libucp.so.0";
// How often UCX asks whether an idle peer is alive.
constexpr char kKeepaliveInterval[] = "2s";

// The first version that was tried whose new protocols do what is needed here.
constexpr std::pair<unsigned, unsigned> kGoodProtocols{1, 22};

struct CloseLibrary {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, CloseLibrary>;

// ucp_get_version() first, so that an old version is called old.
absl::Status FindFunctions(void* library, const std::string& name, Ucx* ucx) {
  const char* missing = nullptr;
  const auto find = [&](auto* function, const char* symbol) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(
        dlsym(library, symbol));
    if (*function == nullptr && missing == nullptr) missing = symbol;
  };
#define FIND(function) find(&ucx->function, #function)
  FIND(ucp_get_version);
  if (missing == nullptr) {
    unsigned release = 0;
    ucx->ucp_get_version(&ucx->number.first, &ucx->number.second, &release);
    ucx->version =
        absl::StrCat(ucx->number.first, ".", ucx->number.second, ".", release);
    if (ucx->number < kMinUcxVersion) {
      return absl::UnavailableError(absl::StrCat(
          "UCX ", ucx->version, " (", name,
          ") is too old: it may end the "
          "process when a peer is lost; it must be ",
          kMinUcxVersion.first, ".", kMinUcxVersion.second, " or newer. ",
          kUcxLibraryVariable, " names another one's libucp.so.0"));
    }
  }
  FIND(ucp_config_read);
  FIND(ucp_config_modify);
  FIND(ucp_config_release);
  FIND(ucp_init_version);
  FIND(ucp_worker_create);
  FIND(ucp_worker_destroy);
  FIND(ucp_worker_get_address);
  FIND(ucp_worker_release_address);
  FIND(ucp_worker_get_efd);
  FIND(ucp_worker_arm);
  FIND(ucp_worker_signal);
  FIND(ucp_worker_progress);
  FIND(ucp_ep_create);
  FIND(ucp_ep_close_nbx);
  FIND(ucp_tag_send_nbx);
  FIND(ucp_tag_recv_nbx);
  FIND(ucp_request_cancel);
  FIND(ucp_request_free);
  FIND(ucs_status_string);
#undef FIND
  if (missing == nullptr) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(name, " is not UCX: it has no ", missing));
}

absl::Status MakeContext(Ucx* ucx) {
  const auto failed = [ucx](const char* call, ucs_status_t status) {
    return absl::UnavailableError(absl::StrCat(
        "UCX ", ucx->version, " cannot be used: ", call, ": ",
        ucx->ucs_status_string(status), "; UCX_LOG_LEVEL=info says more"));
  };
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucx->ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return failed("ucp_config_read", status);
  const auto set = [&](const char* name, const char* value) {
    if (std::getenv(absl::StrCat("UCX_", name).c_str()) == nullptr) {
      ucx->ucp_config_modify(config, name, value);
    }
  };
  set("KEEPALIVE_INTERVAL", kKeepaliveInterval);
  // Those of 1.18.1 do not end the sends of a link that is closed.
  if (ucx->number < kGoodProtocols) set("PROTO_ENABLE", "n");
  ucp_params_t params = {};
  params.field_mask =
      UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  // An epoch's worker may be destroyed while the next one's is made.
  params.mt_workers_shared = 1;
  // Nothing of this interface is newer than the headers' version.
  status = ucx->ucp_init_version(1, 10, &params, config, &ucx->context);
  ucx->ucp_config_release(config);
  return status == UCS_OK ? absl::OkStatus() : failed("ucp_init", status);
}

absl::Status Load(Ucx* ucx) {
  const char* const given = std::getenv(kUcxLibraryVariable);
  const std::string name = given == nullptr ? kLibrary : given;
  Library library(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (library == nullptr) {
    const char* const why = dlerror();
    return absl::UnavailableError(absl::StrCat(
        "UCX cannot be loaded: ",
        absl::StrReplaceAll(why != nullptr ? why : name, {{"\n", " "}}), "; ",
        kUcxLibraryVariable, " names the file of libucp.so.0"));
  }
  absl::Status s = FindFunctions(library.get(), name, ucx);
  if (!s.ok()) return s;
  static_cast<void>(library.release());  // its threads may run until the end
  return MakeContext(ucx);
}

}  // namespace

absl::StatusOr<const Ucx*> OpenUcx() {
  static std::mutex mutex;
  static Ucx* opened = nullptr;  // never destroyed
  std::lock_guard lock(mutex);
  if (opened != nullptr) return opened;
  Ucx ucx = {};
  if (absl::Status s = Load(&ucx); !s.ok()) return s;
  opened = new Ucx(ucx);
  return opened;
}

bool HasRdmaDevice() {
  namespace fs = std::filesystem;
  std::error_code none;
  for (const auto& device :
       fs::directory_iterator("/sys/class/infiniband", none)) {
    for (const auto& port :
         fs::directory_iterator(device.path() / "ports", none)) {
      std::string state;
      std::getline(std::ifstream(port.path() / "state"), state);
      if (state.find("ACTIVE") != state.npos) return true;
    }
  }
  return false;
}

void SetUcxEnvironment() {
  const auto set = [](const char* name, const char* value) {
    setenv(name, value, /*overwrite=*/0);
  };
  set("UCX_HANDLE_ERRORS", "none");
  set("UCX_ERROR_SIGNALS", "");
  set("UCX_LOG_LEVEL", "fatal");
  set("UCX_WARN_UNUSED_ENV_VARS", "n");
  set("UCX_TLS", "^cma");
}

}  // namespace maypole::worker
