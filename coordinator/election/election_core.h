// ElectionCore: how one coordinator becomes and stays the leader, as a state
// machine.
//
// Purpose: in a store (store.h) there is a key that at most one coordinator
// holds, attached to a lease that ends unless its holder renews it. The holder
// leads. The core decides which store call to make next, and until when this
// coordinator may lead. It uses no threads, sockets or clock.
//
//        key absent              key is ours
//   ┌────────────> kCandidate ────────────────> kLeader ──────> kOver
//   kFollower <────────────────  another has it          lease not renewed in
//                                or the lease ended      time, lease or key
//                                                        gone, Resign()
//
//   ElectionCore core(ttl, now);
//   ElectionActions actions;
//   core.Passed(now, &actions);              // emits the first call
//   ... carry them out; then exactly one Answered() for each StoreCall
//   if (core.Deadline() <= now) core.Passed(now, &actions);
//
// Thread contract: not synchronized; one owner.
//
// Invariants: at most one call is unanswered. The core counts a lease's time
// from the moment when it emitted the call that granted or renewed the lease,
// which is before the store received it. So this coordinator's lease never
// outlives the store's, except by the clocks' difference in speed, for which
// there is a margin. A leader's core checks that time before it handles any
// event. kOver is final.
#ifndef MAYPOLE_COORDINATOR_ELECTION_ELECTION_CORE_H_
#define MAYPOLE_COORDINATOR_ELECTION_ELECTION_CORE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "coordinator/election/boot_time.h"

namespace maypole::coordinator {

using LeaseId = int64_t;  // 0: none

// What the store has under the key.
struct Holder {
  std::string value;  // address and incarnation (store.h)
  LeaseId lease = 0;
  uint64_t term = 0;  // grows with every new holder

  bool operator==(const Holder&) const = default;
};

// --- Answers to calls --------------------------------------------------------
// Answers kLook and kClaim: nullopt if no coordinator holds the key.
struct Seen {
  std::optional<Holder> holder;
};
// Answers kGrant.
struct LeaseGranted {
  LeaseId lease = 0;
  BootInstant ttl{};
};
// Answers kRenew. ttl 0: the store no longer knows the lease.
struct LeaseRenewed {
  BootInstant ttl{};
};
// Answers kRevoke.
struct LeaseRevoked {};
// Answers any call: it may or may not have had an effect.
struct CallFailed {
  std::string text;
};
using StoreAnswer =
    std::variant<Seen, LeaseGranted, LeaseRenewed, LeaseRevoked, CallFailed>;

// --- Actions -----------------------------------------------------------------
struct StoreCall {
  enum class Kind {
    kLook,    // who holds the key?
    kGrant,   // a new lease
    kClaim,   // create the key, attached to the lease, if it does not exist
    kRenew,   // the lease
    kRevoke,  // end the lease, and remove the key if it is attached to it
  };
  Kind kind = Kind::kLook;
  LeaseId lease = 0;
  BootInstant timeout{};
};
// This coordinator leads until `until`, unless Prolong or StepDown changes
// that.
struct Lead {
  uint64_t term = 0;
  BootInstant until{};
};
struct Prolong {
  BootInstant until{};
};
// Another coordinator holds the key; nullopt: none does.
struct Follow {
  std::optional<Holder> holder;
};
// This coordinator no longer leads, and the core is over.
struct StepDown {
  std::string reason;
};
// The first failed call after a successful one.
struct StoreFailed {
  std::string text;
};
// The first successful call after a failed one.
struct StoreAnswers {};
using ElectionAction = std::variant<StoreCall, Lead, Prolong, Follow, StepDown,
                                    StoreFailed, StoreAnswers>;
using ElectionActions = std::vector<ElectionAction>;

class ElectionCore {
 public:
  enum class State { kFollower, kCandidate, kLeader, kOver };

  // `ttl`: of the leases that it requests; the store may grant more.
  ElectionCore(BootInstant ttl, BootInstant now) : ttl_(ttl), next_(now) {}

  void Answered(BootInstant now, const StoreAnswer& answer,
                ElectionActions* actions);
  // The store says that the key may have changed.
  void Changed(BootInstant now, ElectionActions* actions);
  void Passed(BootInstant now, ElectionActions* actions);
  // Ends the core. Returns the lease to revoke, 0 if there is none.
  LeaseId Resign();

  // When Passed() must be called; nullopt: when the call is answered, or never.
  std::optional<BootInstant> Deadline() const;
  State state() const { return state_; }

 private:
  using Kind = StoreCall::Kind;

  // As a leader, checks the lease. True if the core is over.
  bool Over(BootInstant now, ElectionActions* actions);
  // Emits the next call if it is time and no call is unanswered.
  void Act(BootInstant now, ElectionActions* actions);
  void Call(Kind kind, BootInstant now, ElectionActions* actions);
  Kind NextCall(BootInstant now) const;
  void Failed(BootInstant now, Kind kind, const std::string& text,
              ElectionActions* actions);
  void SawHolder(BootInstant now, const Seen& seen, ElectionActions* actions);
  void LeadOrFollow(BootInstant now, const Seen& seen,
                    ElectionActions* actions);
  void BecomeFollower(BootInstant now, const std::optional<Holder>& holder,
                      ElectionActions* actions);
  void TellFollow(const std::optional<Holder>& holder,
                  ElectionActions* actions);
  void End(std::string reason, ElectionActions* actions);
  // The end of the lease that the call being answered has granted or renewed.
  BootInstant Until(BootInstant ttl) const;

  BootInstant ttl_;
  State state_ = State::kFollower;
  BootInstant next_;  // of the next call
  std::optional<Kind> called_;
  BootInstant called_at_{};
  bool look_ = false;  // the key may have changed since the last look
  LeaseId lease_ = 0;
  LeaseId unwanted_ = 0;  // to revoke
  BootInstant until_{};   // of lease_
  bool told_ = false;     // who leads
  std::optional<Holder> holder_;
  std::string failure_;  // of the last call; empty: it succeeded
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_ELECTION_ELECTION_CORE_H_
