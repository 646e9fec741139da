#include "tests/gpu/fake_nccl/driver.h"

#include <dlfcn.h>

#include <string>

#include "tests/gpu/fake_nccl/config.h"

namespace maypole::nccl::fake {
namespace {

template <typename Function>
void Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr) {
    Illegal(std::string("libcuda.so.1 is not the fake one: it has no ") + name);
  }
}

const Driver* Load() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  static Driver driver;
  Find(library, "fakeCudaCurrent", &driver.current);
  Find(library, "fakeCudaEnqueue", &driver.enqueue);
  Find(library, "fakeCudaWait", &driver.wait);
  Find(library, "fakeCudaForget", &driver.forget);
  return &driver;
}

}  // namespace

const Driver* OpenDriver() {
  static const Driver* const driver = Load();
  return driver;
}

}  // namespace maypole::nccl::fake
