#include "client/tensorflow/tensorflow_api.h"

#include <dlfcn.h>
#include <link.h>

#include <cstring>
#include <string>
#include <vector>

namespace maypole::tensorflow {

TensorFlowApi tf;

namespace {

// The files of TensorFlow's wheels that have the C API, by version:
// libtensorflow_framework.so.2, libtensorflow_cc.so.2,
// _pywrap_tensorflow_internal.so, lib_pywrap_tensorflow_common.so.
bool IsTensorFlow(const char* path) {
  const char* slash = std::strrchr(path, '/');
  const char* file = slash == nullptr ? path : slash + 1;
  for (const char* prefix :
       {"libtensorflow", "_pywrap_tensorflow_", "lib_pywrap_tensorflow_"}) {
    if (std::strncmp(file, prefix, std::strlen(prefix)) == 0) return true;
  }
  return false;
}

// Collects handles of the loaded files of TensorFlow.
int Visit(dl_phdr_info* info, size_t, void* handles) {
  if (IsTensorFlow(info->dlpi_name)) {
    void* handle = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
    if (handle != nullptr) {
      static_cast<std::vector<void*>*>(handles)->push_back(handle);
    }
  }
  return 0;
}

void* Find(const std::vector<void*>& handles, const char* name) {
  for (void* handle : handles) {
    if (void* found = dlsym(handle, name)) return found;
  }
  return nullptr;
}

}  // namespace

std::string TensorFlowApi::Load() {
  // Never closed: the table points into these libraries.
  std::vector<void*> handles;
  dl_iterate_phdr(Visit, &handles);
  std::string missing;
#define MAYPOLE_FUNCTION(result, name, arguments)                     \
  name = reinterpret_cast<result(*) arguments>(Find(handles, #name)); \
  if (name == nullptr) missing += " " #name;
  MAYPOLE_TENSORFLOW_FUNCTIONS(MAYPOLE_FUNCTION)
#undef MAYPOLE_FUNCTION
#define MAYPOLE_FUNCTION(result, name, arguments) \
  name = reinterpret_cast<result(*) arguments>(Find(handles, #name));
  MAYPOLE_TENSORFLOW_ASYNC_FUNCTIONS(MAYPOLE_FUNCTION)
#undef MAYPOLE_FUNCTION
  // xla::ffi::GetXlaFfiApi(), a function of C++.
  get_xla_ffi_api = reinterpret_cast<const void* (*)()>(
      Find(handles, "_ZN3xla3ffi12GetXlaFfiApiEv"));
  if (TF_RunAsyncOpKernelDoneCallback == nullptr) {
    TF_NewAsyncKernelBuilder = nullptr;
  }
  if (missing.empty()) return "";
  return "this TensorFlow lacks functions that Maypole needs:" + missing +
         "; use TensorFlow 2.8 or newer";
}

}  // namespace maypole::tensorflow
