// libmaypole_jax.so: what Python registers with JAX.
//
//   set_up(path of libmaypole.so, version and places from the wheel's header)
//   jax.ffi.register_ffi_target("maypole_collective",
//                               capsule(maypole_jax_collective),
//                               platform="cpu")
//
// Thread contract: maypole_jax_set_up() once, before a program runs.

#include <string>

#include "client/frameworks/maypole_functions.h"
#include "client/xla/collective.h"
#include "client/xla/xla_ffi.h"

namespace {

using maypole::frameworks::Functions;
namespace ffi = maypole::xla::ffi;

Functions functions;

}  // namespace

extern "C" {

// Returns an error's text, or null. `layout` must stay valid during the call.
__attribute__((visibility("default"))) const char* maypole_jax_set_up(
    const char* libmaypole, const ffi::Layout* layout) {
  static std::string error;
  error = maypole::frameworks::Find(libmaypole, &functions);
  ffi::SetLayout(*layout);
  return error.empty() ? nullptr : error.c_str();
}

// XLA's handler for all stages of a custom call.
__attribute__((visibility("default"))) ffi::Error* maypole_jax_collective(
    ffi::CallFrame* frame) {
  if (ffi::AnswersVersion(*frame) || frame->stage != ffi::kExecute) {
    return nullptr;
  }
  return maypole::xla::Run(
      functions, [](maypole_status status) { return static_cast<int>(status); },
      frame);
}

}  // extern "C"
