// Player: carries out programs on one rank, in an order of its own.
//
//   Player player(client, rank, world, &memory);
//   Player::Outcome o = player.Play(MakeProgram(seed, world));
//
// Within a phase the rank submits in random order (unnamed operations keep
// theirs), polls, waits for a moment, sleeps; then it waits for some of what is
// outstanding. All that is left is awaited at the program's end. The first
// error ends the program: nothing more is submitted, all that is pending is
// awaited.
//
// Thread contract: one thread.
#ifndef MAYPOLE_TESTS_PROPERTIES_PLAYER_H_
#define MAYPOLE_TESTS_PROPERTIES_PLAYER_H_

#include <memory>
#include <string>
#include <vector>

#include "client/client.h"
#include "tests/properties/attempt.h"
#include "tests/properties/spec.h"

namespace maypole::properties {

class Player {
 public:
  // patience_ms: an operation that is pending for longer counts as lost.
  Player(Client* client, int rank, const World& world, Memory* memory,
         int patience_ms)
      : client_(client),
        rank_(rank),
        world_(world),
        memory_(memory),
        patience_ms_(patience_ms) {}

  // What went wrong: a wrong result, an operation that does not end; "" if
  // nothing. An operation's error is not wrong: see failed().
  std::string Play(const Program& program);

  // The last program's operations, in the program's order.
  const std::vector<std::unique_ptr<Attempt>>& attempts() const {
    return attempts_;
  }
  // The first error of the last program; null if there was none.
  const Attempt* failed() const { return failed_; }

 private:
  std::vector<size_t> OrderOf(const Program& program, int phase);
  void PlayPhase(const Program& program, int phase);
  void Submit(Attempt& attempt, bool last);
  void Dabble();
  void WaitForAll();
  void Look(Attempt& attempt);
  Attempt* AnyPending();

  Client* const client_;
  const int rank_;
  const World world_;
  Memory* const memory_;
  const int patience_ms_;
  Random random_;
  std::vector<std::unique_ptr<Attempt>> attempts_;
  const Attempt* failed_ = nullptr;
  std::string wrong_;
};

}  // namespace maypole::properties

#endif  // MAYPOLE_TESTS_PROPERTIES_PLAYER_H_
