// ElasticProcess: a training process of an elastic job.
//
// Purpose: does in C++ what run() does in Python (maypole/common/elastic.py):
// gets the state from rank 0, makes steps, commits; leaves the epoch when a
// change is wanted or something has failed, and joins the next one; leaves the
// job when it gets SIGTERM, or after the last step. After that it may evaluate
// for some time, and fail.
//
// The state is the number of steps that are committed. The programs of the
// epochs are like those of other jobs (program.h), with a commit after each
// step.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_TESTS_SIMULATION_PARTS_ELASTIC_PROCESS_H_
#define MAYPOLE_TESTS_SIMULATION_PARTS_ELASTIC_PROCESS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "client/launcher/job/supervision.h"
#include "tests/simulation/parts/process.h"
#include "tests/simulation/training.h"

namespace maypole::simulation {

class ElasticProcess : public Process {
 public:
  struct Environment {
    Stage* stage = nullptr;
    Ledger* ledger = nullptr;
    Surroundings* surroundings = nullptr;
    Training* training = nullptr;
    int64_t start_timeout = 0;
    std::function<int()> node;  // of its host's agent; -1: none is there
    // It has ended by itself.
    std::function<void(const launcher::Exit&)> on_exit;
    // It is about to end while others may count on it.
    std::function<void()> on_disturbance;
  };

  ElasticProcess(Environment environment, int pid);

  void Sigterm();
  // An exception that the script does not catch.
  void Fail();
  std::string StateText() const override;
  bool evaluates() const { return evaluates_; }

 private:
  bool MayGoOn() override;
  void Introduce(session::Hello* hello) const override;
  void OnWelcome(const BoardConfig& config, uint32_t local_rank) override;
  void OnRefused(Code code, const std::string& why) override;
  void OnClosed() override;
  bool PerformElastic(const Action& action) override;
  void OnProgramEnd(bool finished) override;

  void OnSynced(int64_t step);
  void OnAgreed(size_t operations, bool wanted);
  void Finish();
  // The current operation's answer, if it has ended; then *failed says how.
  bool Answer(Kind kind, int64_t mine, int64_t* answer, bool* failed);
  void Missed();
  void Exit(launcher::Exit exit);

  const Environment environment_;
  int64_t joins_until_ = 0;  // its own start timeout
  bool has_joined_ = false;  // some epoch
  int failed_starts_ = 0;    // in a row
  bool asked_to_leave_ = false;
  bool evaluates_ = false;  // it has finished, and SIGTERM is ignored
  uint64_t last_epoch_ = 0;
  bool synced_here_ = false;  // it has got the state in this epoch
  Entrant entrant_;
  int64_t step_ = 0;  // saved
  bool offered_ = false;
  std::deque<int64_t> numbers_;  // the tensors of its operations
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_PARTS_ELASTIC_PROCESS_H_
