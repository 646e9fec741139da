// Exchange: carries a few values from rank 0 to the other nodes of its job,
// through a service of the launcher (PMIx, torchrun's store).
//
// Purpose: ranks that maypolerun has not started do not know each other's
// addresses. Each node uses it at most once per job, before the nodes are
// connected.
//
// Thread contract: one thread at a time.
#ifndef MAYPOLE_CLIENT_BOOTSTRAP_EXCHANGE_H_
#define MAYPOLE_CLIENT_BOOTSTRAP_EXCHANGE_H_

#include <string>

#include "client/bootstrap/rank_options.h"
#include "common/status.h"

namespace maypole {

class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual Status Put(const std::string& key, const std::string& value) = 0;
  // kDeadlineExceeded: the key has not been put within timeout_ms.
  virtual Status Get(const std::string& key, int timeout_ms,
                     std::string* value) = 0;
};

// Finds the exchange for this launcher; it lives as long as the process. If
// there is none, the error says what is missing. Needed only if the job spans
// several nodes.
Status ExchangeOf(const RankOptions& options, Exchange** out);

// Sets the program's own exchange (maypole_set_exchange()), which ExchangeOf()
// then returns instead of the launcher's. Null removes it. Not owned.
void SetExchange(Exchange* exchange);

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_BOOTSTRAP_EXCHANGE_H_
