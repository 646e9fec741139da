// The C ABI (client/maypole.h) for the libraries of frameworks
// (libmaypole_tensorflow.so, ...), which are not linked to libmaypole.
//
//   maypole::frameworks::Functions maypole;
//   if (const std::string error = Find("/.../libmaypole.so", &maypole);
//       !error.empty()) ...
//   maypole.submit(&operation, &handle);
//   CallWhenDone(maypole, handle, &Done, context);
//
// The framework, not Maypole, chooses how its library is loaded. So Python,
// which has loaded libmaypole, passes its path, and both use the same
// libmaypole: a process has one job.
//
// Thread contract: Find() once, before other threads use the functions; these
// may be called from any thread.
#ifndef MAYPOLE_CLIENT_FRAMEWORKS_MAYPOLE_FUNCTIONS_H_
#define MAYPOLE_CLIENT_FRAMEWORKS_MAYPOLE_FUNCTIONS_H_

#include <string>

#include "client/maypole.h"

namespace maypole::frameworks {

// Precedes the text of each error that a framework's library reports: by this
// mark Python tells our errors from the framework's
// (maypole/common/exceptions.py).
inline constexpr char kErrorMark[] = "maypole: ";

// Each member is the function maypole_NAME.
#define MAYPOLE_FUNCTIONS(X)                                            \
  X(submit)                                                             \
  X(submit_group) X(on_done) X(wait) X(poll) X(result) X(release)       \
      X(received_splits) X(process_set_ranks) X(is_initialized) X(rank) \
          X(size) X(local_rank) X(local_size) X(last_error)

struct Functions {
#define MAYPOLE_DECLARE(name) decltype(&maypole_##name) name = nullptr;
  MAYPOLE_FUNCTIONS(MAYPOLE_DECLARE)
#undef MAYPOLE_DECLARE
};

// Finds the functions in the library at `path`, which the process must have
// loaded. Returns an error's text; empty if all are there.
std::string Find(const char* path, Functions* functions);

// Waits until the operation has ended, even if signals interrupt the wait:
// until then the operation uses its buffers. Returns its outcome, which
// last_error() explains.
maypole_status AwaitEnd(const Functions& functions, int64_t handle);

// As on_done(), but never fails: if there is no completion thread (no memory or
// no thread for one), waits and calls `done` on this thread.
void CallWhenDone(const Functions& functions, int64_t handle, maypole_done done,
                  void* context);

}  // namespace maypole::frameworks

#endif  // MAYPOLE_CLIENT_FRAMEWORKS_MAYPOLE_FUNCTIONS_H_
