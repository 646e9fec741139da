// Process: a training process: one rank that joins, plays its program, leaves,
// and comes again.
//
// Two turns stand for its threads: the program's, and the one that drives the
// progress engine, which sleeps and is woken by the words on the board as the
// real ones.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_TESTS_SIMULATION_PARTS_PROCESS_H_
#define MAYPOLE_TESTS_SIMULATION_PARTS_PROCESS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/wire/session_messages.h"
#include "tests/simulation/interruption.h"
#include "tests/simulation/ledger.h"
#include "tests/simulation/parts/client.h"
#include "tests/simulation/parts/connection.h"
#include "tests/simulation/stage.h"

namespace maypole::simulation {

// What a process needs of the world.
class Surroundings {
 public:
  virtual ~Surroundings() = default;
  // The agent's socket takes the connection.
  virtual void Connect(int node, std::shared_ptr<Connection> connection,
                       const session::Hello& hello) = 0;
  // The epoch that the node has just welcomed its ranks to.
  virtual EpochRecord* CurrentEpoch(int node) = 0;
  // Ranks are interrupted in the middle of their turns by it.
  virtual Interruption* interruption() = 0;
  // The process has died at a kill point.
  virtual void OnDeath(int rank) = 0;
  // How long before a rank calls init (again).
  virtual int64_t InitDelay() = 0;
};

struct Place {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int node = 0;
  int nodes = 1;
};

class Process : public std::enable_shared_from_this<Process> {
 public:
  Process(Stage* stage, Ledger* ledger, Surroundings* surroundings,
          const Place& place, int pid);

  void Start();
  // SIGKILL; the kernel closes its socket after the delay.
  void Kill(int64_t closes_after);
  // Dies in the middle of a turn, after so many kill points.
  void KillAfter(int points) { points_left_ = points; }
  void Freeze(int64_t time);
  // Calls shutdown now, whatever is pending. False: it is in no epoch.
  bool LeaveNow();

  const Place& place() const { return place_; }
  // It has played a calm epoch to its end.
  bool satisfied() const { return satisfied_; }
  EpochRecord* epoch() const { return epoch_; }
  bool frozen() const { return frozen_until_ > stage_->scheduler.now(); }
  std::string StateText() const;

  // After somebody has done something on this node.
  void LookAtWakeWord();

 private:
  enum class State { kOutside, kJoining, kRunning };
  enum class Driver { kAwake, kLastLook, kAsleep };

  // Plays a turn in which the rank may be interrupted, or die.
  void Interruptible(void (Process::*turn)(), Turn* again);
  void MainTurn();
  void Join();
  void ReadWelcome();
  void Welcomed(Message message);
  void GiveUpJoining(const std::string& why);
  void ComeAgain();
  void Perform(const Action& action);
  void Submit(const Action& action);
  void SubmitAgain(const Action& action);
  bool Wait(const Action& action);
  void Attend();
  // Takes note of the operations that have ended.
  void LookAtEnded();
  void OnEnd(Record* record);
  // True if it is over.
  bool PerformControl(const Action& action);
  std::shared_ptr<Operation> MakeControl(const Action& action) const;
  void Leave(bool finished);
  uint64_t OwnProgress() const;
  void DriveTurn();

  Stage* const stage_;
  Ledger* const ledger_;
  Surroundings* const surroundings_;
  const Place place_;
  const int pid_;
  std::shared_ptr<int> life_ = std::make_shared<int>();
  Turn main_;
  Turn driver_;
  int64_t frozen_until_ = 0;
  bool in_turn_ = false;  // stands at a kill point, others go on
  int points_left_ = 0;   // to its death; 0: none is planned
  State state_ = State::kOutside;
  bool satisfied_ = false;
  bool gives_up_on_errors_ = false;
  std::shared_ptr<Connection> connection_;
  std::unique_ptr<Client> client_;
  EpochRecord* epoch_ = nullptr;
  size_t next_action_ = 0;
  bool saw_error_ = false;
  bool ended_ = false;  // some operation has
  std::vector<Record*> pending_;
  std::vector<int64_t> set_ids_;          // by request; -1: not made
  std::shared_ptr<Operation> control_;    // the one it waits for
  std::shared_ptr<Operation> waits_for_;  // an operation, or control_
  bool blocked_ = false;                  // said so on the board
  Driver driver_state_ = Driver::kAwake;
  uint32_t seen_ = 0;  // of the wake word
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_PARTS_PROCESS_H_
