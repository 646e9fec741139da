// SimulatedEtcd: the store of the election (coordinator/election/store.h): one
// key, attached to a lease, and linearizable.
//
// Purpose: executes a call once it has reached the members. The candidate
// (candidate.h) decides how long it takes to get there, and whether it is lost.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_TESTS_SIMULATION_ELECTION_ETCD_H_
#define MAYPOLE_TESTS_SIMULATION_ELECTION_ETCD_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/election/election_core.h"
#include "tests/simulation/random.h"
#include "tests/simulation/scheduler.h"

namespace maypole::simulation {

class SimulatedEtcd {
 public:
  SimulatedEtcd(Scheduler* scheduler, Random* random)
      : scheduler_(scheduler), random_(random) {}

  // Called after each change of the key.
  void Watch(std::function<void()> changed) {
    watches_.push_back(std::move(changed));
  }
  const std::optional<coordinator::Holder>& holder() const { return holder_; }

  coordinator::StoreAnswer Handle(const coordinator::StoreCall& call,
                                  const std::string& value,
                                  coordinator::BootInstant ttl) {
    using Kind = coordinator::StoreCall::Kind;
    const auto lease = leases_.find(call.lease);
    switch (call.kind) {
      case Kind::kLook:
        return coordinator::Seen{holder_};
      case Kind::kGrant:
        Keep(++last_lease_, ttl);
        return coordinator::LeaseGranted{last_lease_, ttl};
      case Kind::kClaim:
        if (!holder_ && lease == leases_.end()) {
          return coordinator::CallFailed{"no such lease"};
        }
        if (!holder_) {
          holder_ = coordinator::Holder{value, call.lease, ++revision_};
          Tell();
        }
        return coordinator::Seen{holder_};
      case Kind::kRenew:
        if (lease == leases_.end()) return coordinator::LeaseRenewed{};
        Keep(call.lease, ttl);
        return coordinator::LeaseRenewed{ttl};
      case Kind::kRevoke:
        End(call.lease);
        return coordinator::LeaseRevoked{};
    }
    return coordinator::CallFailed{"unknown"};
  }

 private:
  // A lease ends up to a second after its time: its leader looks now and then.
  void Keep(coordinator::LeaseId lease, coordinator::BootInstant ttl) {
    const uint64_t renewal = ++leases_[lease];
    scheduler_->After(ttl.count() + random_->Between(0, kSecond), life_,
                      [this, lease, renewal] {
                        const auto it = leases_.find(lease);
                        if (it != leases_.end() && it->second == renewal) {
                          End(lease);
                        }
                      });
  }
  void End(coordinator::LeaseId lease) {
    leases_.erase(lease);
    if (!holder_ || holder_->lease != lease) return;
    holder_.reset();
    ++revision_;
    Tell();
  }
  void Tell() {
    for (const auto& watch : watches_) watch();
  }

  Scheduler* const scheduler_;
  Random* const random_;
  const std::shared_ptr<int> life_ = std::make_shared<int>();
  std::map<coordinator::LeaseId, uint64_t> leases_;  // and their renewals
  std::optional<coordinator::Holder> holder_;
  coordinator::LeaseId last_lease_ = 0;
  uint64_t revision_ = 0;
  std::vector<std::function<void()>> watches_;
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_ELECTION_ETCD_H_
