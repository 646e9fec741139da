#include "tests/fuzz/boards.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <new>
#include <string>

#include "tests/fuzz/feed.h"

namespace maypole::fuzz {
namespace {

// All fields except the epoch, which is only in the header.
std::string KeyOf(BoardConfig config) {
  config.epoch = 0;
  return {reinterpret_cast<const char*>(&config), sizeof(config)};
}

void Empty(const Board& board, int fd, const BoardConfig& config) {
  struct stat st;
  Expect(fstat(fd, &st) == 0, "the board's memory is there");
  Expect(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                   st.st_size) == 0,
         "the board's memory can be emptied");
  auto* header = new (&board.header()) BoardHeader{};
  header->magic = kBoardMagic;
  header->version = kProtocolVersion;
  header->header_bytes = sizeof(BoardHeader);
  header->config = config;
}

}  // namespace

std::unique_ptr<Board> EmptyBoard(const BoardConfig& config) {
  constexpr size_t kKept = 64;
  static auto& kept = *new std::map<std::string, std::unique_ptr<Board>>;
  if (kept.size() > kKept) kept.clear();
  std::unique_ptr<Board>& first = kept[KeyOf(config)];
  if (first == nullptr) {
    Expect(Board::Create(config, &first).ok(), "a board can be made");
  }
  Empty(*first, first->fd(), config);
  std::unique_ptr<Board> board;
  Expect(Board::Attach(Fd(dup(first->fd())), &board).ok(),
         "a board can be attached to");
  return board;
}

}  // namespace maypole::fuzz
