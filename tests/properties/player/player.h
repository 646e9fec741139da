// Player: executes programs on one rank, in the rank's own random order.
//
//   Player player(client, rank, world, &memory, 20000);
//   std::string wrong = player.MakeSets();  // if the world has sets
//   wrong = player.Play(MakeProgram(seed, world));
//
// Within a phase the rank submits in random order (except operations that are
// matched by order), polls, waits briefly, sleeps; then it waits for some of
// the outstanding operations, or joins. At the program's end it waits for the
// remaining ones. The first unexpected error ends the program: the rank submits
// nothing more, and waits for all pending operations.
//
// Thread contract: one thread.
#ifndef MAYPOLE_TESTS_PROPERTIES_PLAYER_PLAYER_H_
#define MAYPOLE_TESTS_PROPERTIES_PLAYER_PLAYER_H_

#include <memory>
#include <string>
#include <vector>

#include "client/api/client.h"
#include "tests/properties/player/attempt.h"
#include "tests/properties/player/probe.h"
#include "tests/properties/spec/agreement.h"
#include "tests/properties/spec/coverage.h"
#include "tests/properties/spec/order.h"
#include "tests/properties/spec/spec.h"

namespace maypole::properties {

// The state that the ranks of a job share, in shared memory.
struct Witness {
  Agreement agreement;
  Coverage coverage;
};

class Player {
 public:
  // patience_ms: an operation that is pending for longer counts as lost.
  // witness: may be null.
  Player(Client* client, int rank, const World& world, Memory* memory,
         int patience_ms, Witness* witness = nullptr)
      : client_(client),
        rank_(rank),
        world_(world),
        memory_(memory),
        patience_ms_(patience_ms),
        witness_(witness) {}

  // Makes the world's process sets: once in each epoch, before Play().
  std::string MakeSets();

  // Returns what went wrong (a wrong result, an operation that does not end),
  // or
  // "". An operation's error does not count: see failed().
  std::string Play(const Program& program);

  // The last program's operations, in the program's order; null where it does
  // not concern this rank.
  const std::vector<std::unique_ptr<Attempt>>& attempts() const {
    return attempts_;
  }
  // The first unexpected error of the last program; null if none.
  const Attempt* failed() const { return failed_; }

 private:
  // A request for a process set under way.
  struct PendingRequest {
    size_t index;
    int64_t handle;
    Status status;  // of its submission, then its own
    uint32_t id;    // that it removes
  };

  bool stopped() const { return failed_ != nullptr || !wrong_.empty(); }
  void Wrong(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
  }
  // Checks that all ranks got the same answer.
  void MustAgree(Agreement::Sort sort, size_t i, const std::string& said,
                 const std::string& about);

  void PlayPhase(int phase);
  void SubmitUnit(const Unit& unit, bool last);
  void SubmitOne(size_t i, bool last);
  void SubmitGroup(const std::vector<size_t>& operations);
  void AwaitSameName(const OperationSpec& spec);
  void SubmitRequest(size_t i);
  void AwaitOperationsOf(int set);
  void AwaitRequests();
  // id: what the request has brought.
  void JudgeRequest(const PendingRequest& pending, uint32_t id);
  std::string CheckRequest(const PendingRequest& pending, uint32_t id);
  void Join(size_t number);
  void Dabble();
  void Probe();
  void WaitForAll();
  void WaitFor(Attempt& attempt);
  void Look(Attempt& attempt);
  Attempt* AnyPending();
  std::vector<KnownSet> KnownSets() const;
  uint32_t IdOf(const OperationSpec& spec) const {
    return static_cast<uint32_t>(ids_[static_cast<size_t>(spec.set)]);
  }

  Client* const client_;
  const int rank_;
  const World world_;
  Memory* const memory_;
  const int patience_ms_;
  Witness* const witness_;
  uint32_t last_id_ = 0;
  std::vector<int64_t> world_ids_ = {0};

  // Of the current program.
  const Program* program_ = nullptr;
  Random random_;
  std::vector<int64_t> ids_;  // of its sets; -1: there is none now
  std::vector<std::unique_ptr<Attempt>> attempts_;
  std::vector<PendingRequest> requests_;
  const Attempt* failed_ = nullptr;
  std::string wrong_;
};

}  // namespace maypole::properties

#endif  // MAYPOLE_TESTS_PROPERTIES_PLAYER_PLAYER_H_
