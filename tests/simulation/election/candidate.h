// Candidate: a coordinator's process that takes part in an election: the real
// ElectionCore, Leadership and CoordinatorCore, with simulated calls to etcd,
// streams to executors, clock and deaths.
//
// Purpose: does what Elections, Candidacy, Hub and SessionStream do with
// threads, a kernel's timer and gRPC: nothing is handled, and nothing is
// written, unless Leadership::Leads() says so; the process ends with its
// leadership, and is started again as a standby.
//
// Its clock need not run as fast as others'. While the process is paused
// (SIGSTOP), only its lease's alarm is set; it handles all that comes meanwhile
// afterwards.
//
// Thread contract: not synchronized. One world at a time in a process, because
// a Leadership's clock is a function.
#ifndef MAYPOLE_TESTS_SIMULATION_ELECTION_CANDIDATE_H_
#define MAYPOLE_TESTS_SIMULATION_ELECTION_CANDIDATE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/coordinator_core.h"
#include "coordinator/election/election_core.h"
#include "coordinator/election/leadership.h"
#include "proto/coordinator.pb.h"
#include "tests/simulation/election/etcd.h"
#include "tests/simulation/random.h"
#include "tests/simulation/scheduler.h"

namespace maypole::simulation {

// What both ends of a stream, and all candidates, share.
struct ElectionStage {
  explicit ElectionStage(uint64_t seed)
      : random(seed), etcd(&scheduler, &random) {}
  int64_t Delay() {
    return random.OneIn(32) ? random.Magnitude(kMillisecond, 64 * kMillisecond)
                            : random.Magnitude(20 * kMicrosecond, kMillisecond);
  }
  Random random;
  Scheduler scheduler;
  SimulatedEtcd etcd;
  bool etcd_up = true;
  // A coordinator's clock runs much too slowly: then two may lead.
  bool skewed = false;
  bool ignore_loss = false;   // sabotage: leaders do not lose their leadership
  bool accept_older = false;  // sabotage: executors join any term
  std::vector<std::string> found;
};

// An executor's end of a stream.
class ElectionStream {
 public:
  virtual ~ElectionStream() = default;
  virtual void OnMessage(const proto::CoordinatorMessage& message) = 0;
  virtual void OnEnded(const absl::Status& status) = 0;

  bool user_open = true;
  bool broken = false;  // nothing gets through any more
  int64_t last_up = 0;  // when the last message arrives
  int64_t last_down = 0;
};

class Candidate {
 public:
  Candidate(ElectionStage* stage, int number, double clock_rate,
            coordinator::BootInstant ttl);

  // --- For executors ---------------------------------------------------------
  void Write(const std::shared_ptr<ElectionStream>& stream,
             const proto::ExecutorMessage& message);
  // The executor has left the stream.
  void Leave(const std::shared_ptr<ElectionStream>& stream);
  // The ends notice that it is broken at different times.
  void Break(const std::shared_ptr<ElectionStream>& stream);
  std::string address() const { return absl::StrCat("c", number_, ":4001"); }

  // --- Faults ----------------------------------------------------------------
  void Kill();
  void Pause(int64_t time);
  void Resign();
  void CutFromStore(bool cut) { cut_from_store_ = cut; }

  bool alive() const { return process_ != nullptr; }
  bool Leads();
  uint64_t terms_led() const { return terms_led_; }

 private:
  coordinator::BootInstant Clock() const;
  // Runs it now, or when the process is continued.
  void Do(std::function<void()> what);
  void Start();
  void Die(int64_t away);
  // The election.
  void Carry(const coordinator::ElectionActions& actions);
  void Call(const coordinator::StoreCall& call);
  void OnElectionTimer();
  void AskForElectionTime();
  // The job's core.
  bool MayAct() { return stage_->ignore_loss ? was_leader_ : Leads(); }
  void Carry(coordinator::Actions* actions);
  void Send(const coordinator::Send& send);
  void Close(coordinator::StreamId id, const absl::Status& status);
  void AskForTime();

  ElectionStage* const stage_;
  const int number_;
  const double clock_rate_;
  const coordinator::BootInstant ttl_;
  const std::shared_ptr<int> life_ = std::make_shared<int>();
  std::shared_ptr<int> process_;  // the owner of its events; null: it is dead
  int incarnations_ = 0;
  std::string value_;  // in etcd
  std::unique_ptr<coordinator::ElectionCore> election_;
  std::unique_ptr<coordinator::Leadership> leadership_;
  std::unique_ptr<coordinator::CoordinatorCore> core_;
  const std::function<void(coordinator::Actions*)> carry_ =
      [this](coordinator::Actions* actions) { Carry(actions); };
  bool was_leader_ = false;
  coordinator::BootInstant alarm_{};
  bool paused_ = false;
  std::deque<std::function<void()>> held_;
  bool cut_from_store_ = false;
  bool look_planned_ = false;
  Turn election_timer_;
  Turn timer_;
  uint64_t terms_led_ = 0;
  coordinator::StreamId last_stream_ = 0;
  std::map<coordinator::StreamId, std::shared_ptr<ElectionStream>> streams_;
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_ELECTION_CANDIDATE_H_
