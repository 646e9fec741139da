// Certificate and key on their way from the supervisor, which may read the
// files, to executors, which run as the job's user and may not.
//
// Purpose: a sealed memfd with no name. The executor reads it when nobody of
// its user can look at it any more (executor_main.cc), and closes it.
//
// Thread contract: functions.
#ifndef MAYPOLE_WORKER_AGENT_SEALED_TLS_H_
#define MAYPOLE_WORKER_AGENT_SEALED_TLS_H_

#include "absl/status/statusor.h"
#include "common/program/tls.h"
#include "common/system/fd.h"

namespace maypole::worker {

// An invalid descriptor if TLS is off.
absl::StatusOr<Fd> SealTls(const TlsOptions& options);
// Many executors share it: its position is left alone.
absl::StatusOr<TlsOptions> ReadSealedTls(Fd fd);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_AGENT_SEALED_TLS_H_
