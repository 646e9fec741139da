#include "tests/properties/spec/agreement.h"

#include <algorithm>
#include <cstring>

namespace maypole::properties {

std::string Agreement::Check(uint64_t program, Sort sort, size_t i,
                             std::string_view said) {
  Cell& cell =
      cells_[program % kPrograms][static_cast<size_t>(sort)][i % kItems];
  const uint64_t mine = program + 1;
  said = said.substr(0, kText - 1);
  uint64_t before = cell.writing;
  while (before != mine) {
    if (!cell.writing.compare_exchange_weak(before, mine)) continue;
    std::memcpy(cell.text, said.data(), said.size());
    cell.text[said.size()] = 0;
    cell.written.store(mine, std::memory_order_release);
    return "";
  }
  while (cell.written.load(std::memory_order_acquire) != mine) {
  }
  if (said == cell.text) return "";
  return "this rank was told '" + std::string(said) + "', another one '" +
         cell.text + "'";
}

void Agreement::BeginJoin(uint64_t program, size_t i, int rank,
                          int64_t now_ns) {
  JoinTime& t = joins_[program % kPrograms][i % kJoins][rank % kRanks];
  t.ns = now_ns;
  t.program.store(program + 1, std::memory_order_release);
}

int64_t Agreement::OthersJoined(uint64_t program, size_t i, int rank,
                                int ranks) const {
  int64_t last = 0;
  for (int r = 0; r < std::min(ranks, kRanks); ++r) {
    if (r == rank) continue;
    const JoinTime& t = joins_[program % kPrograms][i % kJoins][r];
    if (t.program.load(std::memory_order_acquire) != program + 1) return 0;
    last = std::max(last, t.ns.load());
  }
  return last;
}

}  // namespace maypole::properties
