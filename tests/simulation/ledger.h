// Ledger: the checker. Records what every rank has submitted in every epoch,
// how it ended, and which faults may be the cause; reports broken promises.
//
// Checked when an operation ends: results are exact; errors name their cause;
// inputs are unchanged; an operation ends once. Checked when an epoch is over:
// the ranks of a node report the same outcomes; a mismatch was an error for
// all; nothing was written to a rank's memory afterwards; in a calm epoch all
// operations have the planned outcome.
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
  std::vector<std::byte> late_input;  // not written to `input` yet
  std::vector<std::byte> output;      // out of place
  std::vector<std::byte> at_end;  // contents of the result's memory at the end
  int64_t submitted_at = 0;
  int64_t done_at = 0;  // 0: pending
  Status status;
  Status fetched;        // the result, if the operation has ended well
  bool by_rank = false;  // executed by this rank's own GPU
  bool left = false;     // the rank left with it pending

  bool done() const { return done_at != 0; }
  // The ranks have submitted different things. A deadlock has the same code,
  // and ends the epoch.
  bool mismatch() const {
    return status.code() == Code::kFailedPrecondition &&
           status.message().find("deadlock: ") == std::string::npos;
  }
};

struct EpochRecord {
  std::string key;
  Program program;
  int64_t begun_at = 0;
  std::vector<int> node_of_rank;
  // By rank, then by operation; null: not submitted.
  std::vector<std::vector<std::unique_ptr<Record>>> records;
  // Answers to requests for process sets and to joins; -1: none yet.
  std::vector<int64_t> set_ids;
  std::vector<int64_t> last_ranks;
  std::vector<bool> over;  // by rank: has left or died
  std::vector<bool> died;
  std::vector<bool> finished;  // has left at the end of its program
  // Elastic: the ranks have left at a commit, with so many operations behind.
  size_t ends_at = SIZE_MAX;
  bool closed = false;
};

class Ledger {
 public:
  explicit Ledger(Stage* stage) : stage_(stage) {}

  EpochRecord* Find(const std::string& key);
  EpochRecord* Begin(const std::string& key, Program program,
                     std::vector<int> node_of_rank);

  // Records a fault; the errors that it causes contain one of the words.
  void Blame(std::vector<std::string> words);

  // Something happens that no fault has caused: the epochs that run are not
  // calm any more.
  void Disturb();

  void OnEnd(EpochRecord* epoch, Record* record);
  void OnRefused(const EpochRecord& epoch, const Planned& op,
                 const Status& status);
  // Answers to a request for a process set, to a join.
  void OnSetAnswer(EpochRecord* epoch, int rank, size_t request,
                   const Operation& operation);
  void OnJoinAnswer(EpochRecord* epoch, int rank, size_t join,
                    const Operation& operation);
  // An operation that is not in the program has failed.
  void OnError(const EpochRecord& epoch, int rank, const std::string& name,
               const Status& status);
  // The rank's process has left the epoch, or died.
  void OnOver(EpochRecord* epoch, int rank, bool died, bool finished);
  // Checks that all operations submitted before `since` by live ranks have
  // ended. `why`: for the report.
  void CheckEnded(const EpochRecord& epoch, int64_t since,
                  const std::string& why);
  // Describes the operations that have not ended, for each rank.
  std::string PendingText() const;

 private:
  struct Cause {
    int64_t time;
    std::vector<std::string> words;
  };

  void CheckGood(const Record& r);
  void CheckBad(const EpochRecord& epoch, const Record& r);
  void CheckIsNeeded(const EpochRecord& epoch, const Record& r);
  // Checks an error other than a mismatch.
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
