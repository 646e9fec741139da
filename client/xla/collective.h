// A custom call of an XLA program: one collective for each of its buffers.
//
// The call's attributes say what to do (see ReadPlan); all its operations are
// submitted together, or none. XLA's thread returns at once; the library's
// completion thread completes XLA's future when the last operation has ended
// (maypole_on_done()). So no thread of XLA ever waits, and operations may end
// in a different order on each rank.
//
// Thread contract: Run() on any thread of XLA.
#ifndef MAYPOLE_CLIENT_XLA_COLLECTIVE_H_
#define MAYPOLE_CLIENT_XLA_COLLECTIVE_H_

#include "client/frameworks/maypole_functions.h"
#include "client/xla/xla_ffi.h"

namespace maypole::xla {

// Maps a status to the error code that the program sees.
using CodeOf = int (*)(maypole_status status);

// `functions` must live as long as the process. `code_of`: for this call's
// errors.
ffi::Error* Run(const frameworks::Functions& functions, CodeOf code_of,
                ffi::CallFrame* frame);

}  // namespace maypole::xla

#endif  // MAYPOLE_CLIENT_XLA_COLLECTIVE_H_
