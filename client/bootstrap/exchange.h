// Exchange: carries a few values from rank 0 to the other nodes of its job,
// through what the launcher has (PMIx, torchrun's store).
//
// Purpose: ranks that maypolerun has not started know no address of each other.
// Used at most once per node and job, before any connection between nodes.
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
  // kDeadlineExceeded: nobody has put it in timeout_ms.
  virtual Status Get(const std::string& key, int timeout_ms,
                     std::string* value) = 0;
};

// The one for this launcher, for the life of the process; an error says what is
// missing. Not to be asked when the job has one node.
Status ExchangeOf(const RankOptions& options, Exchange** out);

// One that the program brings (maypole_set_exchange()); it is asked first.
// Null: none. It must outlive its use.
void SetExchange(Exchange* exchange);

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_BOOTSTRAP_EXCHANGE_H_
