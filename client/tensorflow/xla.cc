// The custom call of functions that XLA compiles (jit_compile=True); its
// handler is registered through XLA's foreign function interface.
#include "client/tensorflow/collective.h"
#include "client/tensorflow/kernel.h"
#include "client/tensorflow/tensorflow_api.h"
#include "client/xla/collective.h"
#include "client/xla/xla_ffi.h"

namespace {

namespace ffi = maypole::xla::ffi;

// For all stages of a custom call.
ffi::Error* RunCollective(ffi::CallFrame* frame) {
  if (ffi::AnswersVersion(*frame) || frame->stage != ffi::kExecute) {
    return nullptr;
  }
  return maypole::xla::Run(maypole::tensorflow::library,
                           &maypole::tensorflow::TensorFlowCode, frame);
}

}  // namespace

// Registers the custom call maypole_collective; once, after
// maypole_tensorflow_connect(). Returns an error's text; null on success.
extern "C" __attribute__((visibility("default"))) const char*
maypole_tensorflow_connect_xla(const ffi::Layout* layout) {
  if (maypole::tensorflow::tf.get_xla_ffi_api == nullptr) {
    return "this TensorFlow does not export XLA's foreign function interface; "
           "TensorFlow 2.18 does";
  }
  ffi::SetLayout(*layout);
  const auto* api =
      static_cast<const ffi::Api*>(maypole::tensorflow::tf.get_xla_ffi_api());
  return ffi::RegisterHandler(*api, "maypole_collective", &RunCollective) ==
                 nullptr
             ? nullptr
             : "XLA has refused the handler of Maypole's collectives";
}
