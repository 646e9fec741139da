// Agreement: whether all ranks were told the same, where no reference can say
// what: the text of an error, the id of a process set, who joined last.
//
// The first rank to say something about an item decides; the others must say
// the same. Lies in memory that the ranks share, all zero at first.
//
// Thread contract: any process, any thread. Ranks are at most one program
// apart, and programs are numbered one after the other.
#ifndef MAYPOLE_TESTS_PROPERTIES_SPEC_AGREEMENT_H_
#define MAYPOLE_TESTS_PROPERTIES_SPEC_AGREEMENT_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace maypole::properties {

class Agreement {
 public:
  // What an item is of: the i-th of its sort in the program.
  enum class Sort { kOperation, kRequest, kJoin };

  // "" if `said` is what the others have said, else how it differs.
  std::string Check(uint64_t program, Sort sort, size_t i,
                    std::string_view said);

  // A join has begun now; by all ranks of `ranks` but this one: when the last
  // of them did, else 0.
  void BeginJoin(uint64_t program, size_t i, int rank, int64_t now_ns);
  int64_t OthersJoined(uint64_t program, size_t i, int rank, int ranks) const;

 private:
  static constexpr size_t kPrograms = 4;
  static constexpr size_t kItems = 32;  // of a sort
  static constexpr size_t kJoins = 4;
  static constexpr int kRanks = 16;
  static constexpr size_t kText = 1200;

  struct Cell {
    std::atomic<uint64_t> writing;  // program + 1 of who has taken it
    std::atomic<uint64_t> written;  // the same once `text` is there
    char text[kText];
  };
  struct JoinTime {
    std::atomic<uint64_t> program;  // + 1
    std::atomic<int64_t> ns;
  };

  Cell cells_[kPrograms][3][kItems];
  JoinTime joins_[kPrograms][kJoins][kRanks];
};

}  // namespace maypole::properties

#endif  // MAYPOLE_TESTS_PROPERTIES_SPEC_AGREEMENT_H_
