// Fast creation of boards for fuzzers: the memory of each config is created
// once (by Board::Create) and cleared for the next execution.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_TESTS_FUZZ_BOARDS_H_
#define MAYPOLE_TESTS_FUZZ_BOARDS_H_

#include <memory>

#include "common/board/board.h"

namespace maypole::fuzz {

std::unique_ptr<Board> EmptyBoard(const BoardConfig& config);

}  // namespace maypole::fuzz

#endif  // MAYPOLE_TESTS_FUZZ_BOARDS_H_
