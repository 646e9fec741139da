// ElectionStore: where coordinators agree on who leads.
//
// Purpose: the operations that ElectionCore needs of a consistent store with
// leases. etcd is behind it (etcd_store.h); docs/high-availability.md says what
// a store of another kind must offer.
//
// Thread contract: one thread makes the calls (Call), another one may be in
// Watch(), and any thread may call Stop(). Call() returns when the call's
// timeout has passed, whatever the network does.
#ifndef MAYPOLE_COORDINATOR_ELECTION_STORE_H_
#define MAYPOLE_COORDINATOR_ELECTION_STORE_H_

#include <functional>
#include <string>

#include "coordinator/election/election_core.h"

namespace maypole::coordinator {

class ElectionStore {
 public:
  virtual ~ElectionStore() = default;

  // A call must be atomic and linearizable. The answer is of the call's kind
  // (see StoreCall), or CallFailed.
  virtual StoreAnswer Call(const StoreCall& call) = 0;

  // Calls `changed` after each change of the key until Stop(). Extra or late
  // calls are harmless: the core also reads the key from time to time.
  virtual void Watch(const std::function<void()>& changed) = 0;

  // Ends the call and the watch in progress; later ones fail at once, except
  // kRevoke.
  virtual void Stop() = 0;
};

// The key's value: "HOST:PORT INCARNATION".
std::string HolderValue(const std::string& address,
                        const std::string& incarnation);
// The address in a value that a coordinator has written.
std::string AddressOf(const std::string& value);

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_ELECTION_STORE_H_
