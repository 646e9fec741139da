// PMIx: what Open MPI's mpirun and srun --mpi=pmix carry values with.
//
// Purpose: libpmix is loaded when it is needed: libmaypole itself needs libc
// only, and a program that uses MPI has loaded it already.
//
// Thread contract: as Exchange.
#ifndef MAYPOLE_CLIENT_BOOTSTRAP_PMIX_EXCHANGE_H_
#define MAYPOLE_CLIENT_BOOTSTRAP_PMIX_EXCHANGE_H_

#include "client/bootstrap/exchange.h"
#include "common/status.h"

namespace maypole {

// The process's connection to its PMIx server, for its life. An error if there
// is no server or no library.
Status PmixExchange(Exchange** out);

// In a forked child: the connection is not its own, not even to end it.
void LeavePmixInChild();

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_BOOTSTRAP_PMIX_EXCHANGE_H_
