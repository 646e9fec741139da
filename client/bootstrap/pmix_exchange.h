// PmixExchange: the exchange for Open MPI's mpirun, jsrun and srun --mpi=pmix.
//
// Purpose: loads libpmix only when it is needed, so that libmaypole itself
// depends on nothing but libc. A program that uses MPI has loaded it already.
//
// Thread contract: as Exchange.
#ifndef MAYPOLE_CLIENT_BOOTSTRAP_PMIX_EXCHANGE_H_
#define MAYPOLE_CLIENT_BOOTSTRAP_PMIX_EXCHANGE_H_

#include "client/bootstrap/exchange.h"
#include "common/status.h"

namespace maypole {

// The process's connection to its PMIx server; it lives as long as the process.
// An error if there is no server or no library.
Status PmixExchange(Exchange** out);

// For a forked child: forgets the connection, which belongs to the parent,
// without closing it.
void LeavePmixInChild();

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_BOOTSTRAP_PMIX_EXCHANGE_H_
