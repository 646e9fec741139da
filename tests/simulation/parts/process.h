// Process: a training process: one rank that joins, plays its program, leaves,
// and joins again.
//
// Two turns stand for its threads: the program's thread, and the one that
// drives the progress engine, which sleeps and is woken by the words on the
// board like the real one.
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
#include "tests/simulation/parts/rank_gpu.h"
#include "tests/simulation/stage.h"

namespace maypole::simulation {

class Process;

// The services that a process needs from the world.
class Surroundings {
 public:
  virtual ~Surroundings() = default;
  // The agent's socket accepts the connection.
  virtual void Connect(int node, std::shared_ptr<Connection> connection,
                       const session::Hello& hello) = 0;
  // The epoch to which the node has just welcomed a rank; `key` as it was when
  // the board was made.
  virtual EpochRecord* CurrentEpoch(int node, const std::string& key,
                                    const BoardConfig& config) = 0;
  // Interrupts ranks within their turns.
  virtual Interruption* interruption() = 0;
  // The process has died at a kill point.
  virtual void OnDeath(Process* process) = 0;
  // The time until a rank calls init (again).
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
          const Place& place, int pid, bool elastic = false);
  // An executor may close the connection later.
  virtual ~Process() {
    if (connection_ != nullptr) connection_->to_client.on_readable = nullptr;
  }

  void Start();
  // SIGKILL; the kernel closes its socket after the delay.
  void Kill(int64_t closes_after);
  // Dies within a turn, after this number of kill points.
  void KillAfter(int points) { points_left_ = points; }
  void Freeze(int64_t time);
  // Calls shutdown now, whatever is pending. Returns false if it is in no
  // epoch.
  bool LeaveNow();

  const Place& place() const { return place_; }
  int pid() const { return pid_; }
  // It has played a calm epoch to its end.
  bool satisfied() const { return satisfied_; }
  EpochRecord* epoch() const { return epoch_; }
  // The executor to which it is connected lives.
  bool has_executor() const {
    return connection_ != nullptr && !connection_->to_client.closed;
  }
  bool frozen() const { return frozen_until_ > stage_->scheduler.now(); }
  virtual std::string StateText() const;

  // Call after every event on this node.
  void LookAtWakeWord();

 protected:
  enum class State { kOutside, kJoining, kRunning };

  // --- What an elastic process does otherwise (elastic_process.h) ------------
  // False if its turn must not go on: it waits for its agent, or has ended.
  virtual bool MayGoOn() { return true; }
  virtual void Introduce(session::Hello* hello) const;
  // It has been welcomed; not yet in the epoch.
  virtual void OnWelcome(const BoardConfig&, uint32_t /*local_rank*/) {}
  virtual void OnRefused(Code code, const std::string& why);
  // The connection was closed before the welcome.
  virtual void OnClosed();
  // Actions of elastic programs: true if it is complete.
  virtual bool PerformElastic(const Action& action);
  // It has seen an error and leaves the epoch, or its program is at its end.
  virtual void OnProgramEnd(bool finished);

  void Join();
  // Leaves the epoch; in an elastic job `returns` says that it will come back.
  void Leave(bool finished, bool returns);
  void ComeAgain();
  // Submits an operation of its own, and waits for it: true if it has ended.
  bool PerformAlone(const std::function<std::shared_ptr<Operation>()>& make);
  // The SIGKILL's and the exit's part in common: all its memory is gone.
  void Vanish();

  Stage* const stage_;
  Ledger* const ledger_;
  Surroundings* const surroundings_;
  Place place_;
  const int pid_;
  const bool elastic_;
  const std::shared_ptr<ProcessHandle> handle_ =
      std::make_shared<ProcessHandle>();
  std::shared_ptr<int> life_ = std::make_shared<int>();
  Turn main_;
  State state_ = State::kOutside;
  bool saw_error_ = false;
  bool gives_up_on_errors_ = false;
  std::shared_ptr<Connection> connection_;
  std::unique_ptr<Client> client_;
  EpochRecord* epoch_ = nullptr;
  std::shared_ptr<Operation> control_;  // set request, join or the like

 private:
  enum class Driver { kAwake, kLastLook, kAsleep };

  // Plays a turn in which the rank may be interrupted, or die.
  void Interruptible(void (Process::*turn)(), Turn* again);
  void MainTurn();
  void ReadWelcome();
  void Welcomed(Message message);
  void Perform(const Action& action);
  void Submit(const Action& action);
  // A rank with a GPU asks its executor to open a memory there.
  void ShareGpuMemory();
  uint64_t RoomFor(const Planned& planned, const Operation& operation);
  bool PutOnGpu(Record* record);
  void SubmitAgain(const Action& action);
  // A thread of its own: the inputs that a GPU has written.
  void InputTurn();
  bool Wait(const Action& action);
  void Attend();
  // Takes note of the operations that have ended.
  void LookAtEnded();
  bool Fetched(Record* record);
  void OnEnd(Record* record);
  // True if the action is complete.
  bool PerformControl(const Action& action);
  std::shared_ptr<Operation> MakeControl(const Action& action) const;
  uint64_t OwnProgress() const;
  void DriveTurn();

  Turn driver_;
  Turn inputs_;
  int64_t frozen_until_ = 0;
  bool in_turn_ = false;  // interrupted at a kill point, others run
  int points_left_ = 0;   // kill points until its death; 0: none is planned
  bool satisfied_ = false;
  size_t next_action_ = 0;
  bool ended_ = false;  // an operation has ended
  std::vector<Record*> pending_;
  std::vector<Record*> late_;                   // pending without their inputs
  GpuMemory gpu_memory_;                        // null: it has none
  std::unique_ptr<SimulatedRankGpu> rank_gpu_;  // null: it calls no NCCL
  int64_t gpu_ = -1;  // its number; -1: it is not open
  uint64_t gpu_allocated_ = 0;
  std::vector<int64_t> set_ids_;          // by request; -1: not made
  std::shared_ptr<Operation> waits_for_;  // an operation, or control_
  bool blocked_ = false;                  // as published on the board
  Driver driver_state_ = Driver::kAwake;
  uint32_t seen_ = 0;  // the wake word's last value
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_PARTS_PROCESS_H_
