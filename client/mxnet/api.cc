// What libmaypole_mxnet.so exports, for maypole/mxnet/_engine.py. Both
// functions return an error's text, valid until the calling thread's next call;
// null on success.

#include <string>

#include "client/mxnet/operation.h"

namespace {

maypole::mxnet::Environment& TheEnvironment() {
  static auto* const environment = new maypole::mxnet::Environment;
  return *environment;
}

const char* Kept(std::string error) {
  static thread_local std::string kept;
  kept = std::move(error);
  return kept.empty() ? nullptr : kept.c_str();
}

}  // namespace

#define MAYPOLE_EXPORT \
  extern "C" __attribute__((visibility("default"))) const char*

// Must be called once, before the other one. `library`: the libmaypole that
// this process has loaded.
MAYPOLE_EXPORT maypole_mxnet_start(
    const char* library, const maypole::mxnet::EngineFunctions* engine) {
  TheEnvironment().engine = *engine;
  return Kept(maypole::frameworks::Find(library, &TheEnvironment().maypole));
}

// input and output of the operation are NDArrayHandles; it must have a name.
MAYPOLE_EXPORT maypole_mxnet_push(const maypole_operation* operation,
                                  int priority) {
  return Kept(maypole::mxnet::Push(TheEnvironment(), *operation, priority));
}
