// A collective on NDArrays, as an operation of MXNet's engine.
//
// Invariants: the operation holds its own handles of its arrays, because the
// program may drop its handles before the engine runs the operation. The
// engine's thread submits and does not wait (CallWhenDone()); libmaypole's
// completion thread ends the operation.
//
// Thread contract: Push() from any thread.
#ifndef MAYPOLE_CLIENT_MXNET_OPERATION_H_
#define MAYPOLE_CLIENT_MXNET_OPERATION_H_

#include <string>

#include "client/frameworks/maypole_functions.h"
#include "client/mxnet/engine.h"

namespace maypole::mxnet {

struct Environment {
  frameworks::Functions maypole;
  EngineFunctions engine;
};

// Pushes an operation to the engine. `operation.input` and `operation.output`
// are NDArrayHandles: equal if in place, else the output is a new array.
// `environment` must live as long as the process. Returns an error's text;
// empty on success. If the engine must block, the operation has ended when this
// returns.
std::string Push(const Environment& environment,
                 const maypole_operation& operation, int priority);

}  // namespace maypole::mxnet

#endif  // MAYPOLE_CLIENT_MXNET_OPERATION_H_
