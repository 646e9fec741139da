#include "client/bootstrap/pmix_exchange.h"

#include <dlfcn.h>
#include <pmix.h>
#include <stdlib.h>
#include <string.h>

#include <chrono>
#include <thread>

namespace maypole {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kRetry = std::chrono::milliseconds(50);

// Debian's path; Debian installs several versions side by side.
#if defined(__aarch64__)
constexpr char kLibraryOfDebian[] =
    "/usr/lib/aarch64-linux-gnu/pmix2/lib/libpmix.so.2";
#else
constexpr char kLibraryOfDebian[] =
    "/usr/lib/x86_64-linux-gnu/pmix2/lib/libpmix.so.2";
#endif

// The functions of libpmix that Maypole uses.
struct Functions {
  decltype(&PMIx_Init) init = nullptr;
  decltype(&PMIx_Finalize) finalize = nullptr;
  decltype(&PMIx_Put) put = nullptr;
  decltype(&PMIx_Commit) commit = nullptr;
  decltype(&PMIx_Get) get = nullptr;
  decltype(&PMIx_Publish) publish = nullptr;
  decltype(&PMIx_Lookup) lookup = nullptr;
  decltype(&PMIx_Error_string) error_string = nullptr;
};

template <typename F>
bool Load(void* library, const char* name, F* out) {
  *out = reinterpret_cast<F>(dlsym(library, name));
  return *out != nullptr;
}

Status LoadFunctions(Functions* f) {
  void* library = nullptr;
  for (const char* name : {"libpmix.so.2", kLibraryOfDebian}) {
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
  }
  if (library == nullptr) {
    return Status(Code::kUnavailable,
                  std::string("cannot load PMIx, which carries values between "
                              "the nodes of this launcher: ") +
                      dlerror() + " (Debian: libpmix2)");
  }
  if (Load(library, "PMIx_Init", &f->init) &&
      Load(library, "PMIx_Finalize", &f->finalize) &&
      Load(library, "PMIx_Put", &f->put) &&
      Load(library, "PMIx_Commit", &f->commit) &&
      Load(library, "PMIx_Get", &f->get) &&
      Load(library, "PMIx_Publish", &f->publish) &&
      Load(library, "PMIx_Lookup", &f->lookup) &&
      Load(library, "PMIx_Error_string", &f->error_string)) {
    return Status();
  }
  return Status(Code::kUnavailable, "libpmix.so.2 lacks a function of PMIx 3");
}

void SetKey(char* to, const std::string& key) {
  strncpy(to, key.c_str(), PMIX_MAX_KEYLEN);
}

// Rank 0 publishes a value, the others look it up. If the server does not
// support that (Slurm's), rank 0 puts the value among its own data and the
// others get it from there. (Open MPI's server supports that too, but data that
// the rank has put before, for MPI, may hide the value.)
class Pmix : public Exchange {
 public:
  explicit Pmix(const Functions& functions) : f_(functions) {}

  // Other parts of the program may also call PMIx_Init: the library counts the
  // calls.
  Status Init() {
    const pmix_status_t s = f_.init(&self_, nullptr, 0);
    return s == PMIX_SUCCESS ? Status() : Failure("PMIx_Init", s);
  }

  void Finalize() { f_.finalize(nullptr, 0); }

  Status Put(const std::string& key, const std::string& value) override {
    pmix_info_t info{};
    SetKey(info.key, key);
    info.value.type = PMIX_STRING;
    info.value.data.string = const_cast<char*>(value.c_str());
    pmix_status_t s = f_.publish(&info, 1);
    if (s == PMIX_SUCCESS) return Status();
    if (s != PMIX_ERR_NOT_SUPPORTED) return Failure("PMIx_Publish", s);
    s = f_.put(PMIX_GLOBAL, key.c_str(), &info.value);
    if (s == PMIX_SUCCESS) s = f_.commit();
    return s == PMIX_SUCCESS ? Status() : Failure("PMIx_Put", s);
  }

  // Polls, because not every server can wait.
  Status Get(const std::string& key, int timeout_ms,
             std::string* value) override {
    const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
    while (true) {
      pmix_status_t s = LookUp(key, value);
      if (s == PMIX_ERR_NOT_SUPPORTED) s = GetOfRank0(key, value);
      if (s == PMIX_SUCCESS) return Status();
      if (s != PMIX_ERR_NOT_FOUND && s != PMIX_ERR_TIMEOUT) {
        return Failure("cannot read what rank 0 has published", s);
      }
      if (Clock::now() >= deadline) {
        return Status(Code::kDeadlineExceeded, "not published yet");
      }
      std::this_thread::sleep_for(kRetry);
    }
  }

 private:
  static pmix_status_t Take(pmix_value_t* from, std::string* value) {
    if (from->type != PMIX_STRING || from->data.string == nullptr) {
      return PMIX_ERR_NOT_FOUND;
    }
    *value = from->data.string;
    free(from->data.string);
    return PMIX_SUCCESS;
  }

  pmix_status_t LookUp(const std::string& key, std::string* value) const {
    pmix_pdata_t data{};
    SetKey(data.key, key);
    const pmix_status_t s = f_.lookup(&data, 1, nullptr, 0);
    return s == PMIX_SUCCESS ? Take(&data.value, value) : s;
  }

  pmix_status_t GetOfRank0(const std::string& key, std::string* value) const {
    pmix_proc_t rank0 = self_;
    rank0.rank = 0;
    pmix_info_t limit{};
    SetKey(limit.key, PMIX_TIMEOUT);
    limit.value.type = PMIX_INT;
    limit.value.data.integer = 1;  // seconds
    pmix_value_t* found = nullptr;
    const pmix_status_t s = f_.get(&rank0, key.c_str(), &limit, 1, &found);
    if (s != PMIX_SUCCESS) return s;
    if (found == nullptr) return PMIX_ERR_NOT_FOUND;
    const pmix_status_t taken = Take(found, value);
    free(found);
    return taken;
  }

  Status Failure(const char* what, pmix_status_t status) const {
    return Status(Code::kUnavailable,
                  std::string(what) + " (libpmix): " + f_.error_string(status));
  }

  const Functions f_;
  pmix_proc_t self_{};
};

Pmix* process_pmix = nullptr;  // for the life of the process

}  // namespace

Status PmixExchange(Exchange** out) {
  if (process_pmix == nullptr) {
    Functions functions;
    if (Status s = LoadFunctions(&functions); !s.ok()) return s;
    auto* made = new Pmix(functions);
    if (Status s = made->Init(); !s.ok()) {
      delete made;
      return s;
    }
    process_pmix = made;
    // If a process exits without PMIx_Finalize, mpirun treats it as failed. Not
    // called before exit, because the program may use MPI.
    static const int once = atexit([] {
      if (process_pmix != nullptr) process_pmix->Finalize();
    });
    (void)once;
  }
  *out = process_pmix;
  return Status();
}

void LeavePmixInChild() { process_pmix = nullptr; }

}  // namespace maypole
