// SealTls, ReadSealedTls: pass certificate and key from the supervisor, which
// may read the files, to executors, which run as the job's user and may not.
//
// Purpose: the supervisor writes them to a sealed memfd, which has no path. An
// executor reads and closes it after it has made itself undumpable, so that
// other processes of its user cannot read it (executor_main.cc).
//
// Thread contract: any thread.
#ifndef MAYPOLE_WORKER_AGENT_SEALED_TLS_H_
#define MAYPOLE_WORKER_AGENT_SEALED_TLS_H_

#include "absl/status/statusor.h"
#include "common/program/tls.h"
#include "common/system/fd.h"

namespace maypole::worker {

// Returns an invalid descriptor if TLS is off.
absl::StatusOr<Fd> SealTls(const TlsOptions& options);
// Does not move the file position, which all executors share.
absl::StatusOr<TlsOptions> ReadSealedTls(Fd fd);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_AGENT_SEALED_TLS_H_
