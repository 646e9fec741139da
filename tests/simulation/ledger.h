// Ledger: the checker. Knows what every rank has submitted in every epoch, what
// became of it, and whose fault it may be; and says what breaks a promise.
//
// Checked as it happens: results are exact; errors name their cause; inputs are
// whole; an operation ends once. Checked when an epoch is over: the ranks of a
// node tell alike; a mismatch was an error for all; nothing was written to a
// rank's memory afterwards; in a calm epoch everything has ended as it should.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_TESTS_SIMULATION_LEDGER_H_
#define MAYPOLE_TESTS_SIMULATION_LEDGER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/engine/operation.h"
#include "tests/simulation/program.h"
#include "tests/simulation/stage.h"

namespace maypole::simulation {

// One operation of one rank. Its memory stays until the run is over.
struct Record {
  const Planned* planned = nullptr;
  int rank = 0;
  std::shared_ptr<Operation> operation;
  std::vector<std::byte> input;
  std::vector<std::byte> output;  // out of place
  std::vector<std::byte> at_end;  // what was in the result's memory then
  int64_t submitted_at = 0;
  int64_t done_at = 0;  // 0: pending
  Status status;
  bool left = false;  // the rank left with it pending

  bool done() const { return done_at != 0; }
};

struct EpochRecord {
  std::string key;
  Program program;
  int64_t begun_at = 0;
  std::vector<int> node_of_rank;
  // By rank, then by operation; null: not submitted.
  std::vector<std::vector<std::unique_ptr<Record>>> records;
  // What requests for process sets and joins were answered; -1: nothing yet.
  std::vector<int64_t> set_ids;
  std::vector<int64_t> last_ranks;
  std::vector<bool> over;  // by rank: has left or died
  std::vector<bool> died;
  std::vector<bool> finished;  // has left at the end of its program
  bool closed = false;
};

class Ledger {
 public:
  explicit Ledger(Stage* stage) : stage_(stage) {}

  EpochRecord* Find(const std::string& key);
  EpochRecord* Begin(const std::string& key, Program program,
                     std::vector<int> node_of_rank);

  // A fault whose consequences name one of the words. If `bounded`, all that is
  // pending in the epoch then must end soon.
  void Blame(std::vector<std::string> words);

  void OnEnd(EpochRecord* epoch, Record* record);
  void OnRefused(const EpochRecord& epoch, const Planned& op,
                 const Status& status);
  // Answers to a request for a process set, to a join.
  void OnSetAnswer(EpochRecord* epoch, int rank, size_t request,
                   const Operation& operation);
  void OnJoinAnswer(EpochRecord* epoch, int rank, size_t join,
                    const Operation& operation);
  // The rank's process has left the epoch, or died.
  void OnOver(EpochRecord* epoch, int rank, bool died, bool finished);
  // What must have ended by now: submitted before `since` by ranks that live.
  void CheckEnded(const EpochRecord& epoch, int64_t since,
                  const std::string& why);
  // Operations that have not ended, and who waits for whom.
  std::string PendingText() const;

 private:
  struct Cause {
    int64_t time;
    std::vector<std::string> words;
  };

  void CheckGood(const Record& r);
  void CheckBad(const EpochRecord& epoch, const Record& r);
  void CheckIsNeeded(const EpochRecord& epoch, const Record& r);
  // An error that is no mismatch.
  void CheckEnd(const EpochRecord& epoch, const std::string& who,
                const std::string& text);
  void CheckAnswer(const EpochRecord& epoch, const std::string& who,
                   int64_t answer, int64_t* before);
  bool IsBlamed(const std::string& text) const;
  void Close(EpochRecord* epoch);
  void CompareOnNode(const EpochRecord& epoch, size_t op);
  void CheckMemory(const Record& r);
  std::string Who(const EpochRecord& epoch, const Record& r) const;

  Stage* const stage_;
  std::map<std::string, std::unique_ptr<EpochRecord>> epochs_;
  std::vector<Cause> causes_;
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_LEDGER_H_
