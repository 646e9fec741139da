// A custom call of an XLA program: one collective for each of its buffers.
//
// The call's attributes say what to do (see ReadPlan); all its operations are
// submitted together, or none. XLA's thread returns at once; the library's
// completion thread completes XLA's future when the last operation has ended
// (maypole_on_done()). So no thread of XLA ever waits, and operations may end
// in a different order on each rank.
//
// When a call fails, its floating results become NaN, and the process keeps the
// first failure of the membership epoch until somebody takes it: jaxlib 0.4.38
// can drop an error, and then nothing else tells the program.
//
// Thread contract: Run() on any thread of XLA; the others on any thread.
#ifndef MAYPOLE_CLIENT_XLA_COLLECTIVE_H_
#define MAYPOLE_CLIENT_XLA_COLLECTIVE_H_

#include <cstdint>
#include <string>

#include "client/frameworks/maypole_functions.h"
#include "client/xla/xla_ffi.h"

namespace maypole::xla {

// Maps a status to the error code that the program sees.
using CodeOf = int (*)(maypole_status status);

// From now on, errors name this epoch; the failures of earlier ones are
// forgotten. Before the first call, errors name none.
void BeginEpoch(int64_t number);

// The text of the epoch's first failure, as in the program's error; empty if
// there is none, or it was taken.
std::string TakeFailure();

// `functions` must live as long as the process. `code_of`: for this call's
// errors.
ffi::Error* Run(const frameworks::Functions& functions, CodeOf code_of,
                ffi::CallFrame* frame);

}  // namespace maypole::xla

#endif  // MAYPOLE_CLIENT_XLA_COLLECTIVE_H_
