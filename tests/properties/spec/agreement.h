// Agreement: checks that all ranks got the same answer where no reference can
// compute it: the text of an error, the id of a process set, the last rank to
// join.
//
// The first rank to report an item sets its value; the others must report the
// same. The object lies in memory that the ranks share, initially zero.
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
  // The sort of an item; items are numbered by sort in the program.
  enum class Sort { kOperation, kRequest, kJoin };

  // "" if `said` equals what the others have reported, else the difference.
  std::string Check(uint64_t program, Sort sort, size_t i,
                    std::string_view said);

  // Call when this rank's join begins. Returns the time of the last other
  // rank's join if all others of `ranks` have joined, else 0.
  void BeginJoin(uint64_t program, size_t i, int rank, int64_t now_ns);
  int64_t OthersJoined(uint64_t program, size_t i, int rank, int ranks) const;

 private:
  static constexpr size_t kPrograms = 4;
  static constexpr size_t kItems = 32;  // of a sort
  static constexpr size_t kJoins = 4;
  static constexpr int kRanks = 16;
  static constexpr size_t kText = 1200;

  struct Cell {
    std::atomic<uint64_t> writing;  // program + 1 of the rank that writes it
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
