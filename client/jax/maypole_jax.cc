// libmaypole_jax.so: what Python registers with JAX.
//
//   set_up(path of libmaypole.so, version and places from the wheel's header)
//   jax.ffi.register_ffi_target("maypole_collective",
//                               capsule(maypole_jax_collective),
//                               platform="cpu")
//
// Thread contract: maypole_jax_set_up() once, before a program runs.

#include <cstdint>
#include <string>

#include "client/frameworks/maypole_functions.h"
#include "client/jax/digest.h"
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

// Called when the process has joined its membership epoch `number`, 1 or more.
__attribute__((visibility("default"))) void maypole_jax_begin_epoch(
    int64_t number) {
  maypole::xla::BeginEpoch(number);
}

// The epoch's first failure in a program, once; null if there is none. The text
// is valid until the thread's next call.
__attribute__((visibility("default"))) const char* maypole_jax_take_failure() {
  static thread_local std::string text;
  text = maypole::xla::TakeFailure();
  return text.empty() ? nullptr : text.c_str();
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

// Likewise, of the custom call that digest.h describes.
__attribute__((visibility("default"))) ffi::Error* maypole_jax_digest(
    ffi::CallFrame* frame) {
  if (ffi::AnswersVersion(*frame) || frame->stage != ffi::kExecute ||
      maypole::jax::WriteDigests(*frame)) {
    return nullptr;
  }
  return ffi::MakeError(*frame->api, MAYPOLE_INTERNAL,
                        "maypole: the arrays of a digest are not those that "
                        "maypole.jax gives it");
}

}  // extern "C"
