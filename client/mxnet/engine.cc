#include "client/mxnet/engine.h"

#include <stdexcept>

namespace dmlc {

// As in dmlc/logging.h. The engine copies it with its base's copy constructor.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace dmlc

namespace maypole::mxnet {

void Complete(const Completion& completion, const std::string& error) {
  if (error.empty()) {
    completion.callback(completion.engine, completion.operation, nullptr);
    return;
  }
  const dmlc::Error thrown(error);
  completion.callback(completion.engine, completion.operation, &thrown);
}

}  // namespace maypole::mxnet
