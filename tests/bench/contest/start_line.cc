#include "tests/bench/contest/start_line.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "common/system/cores.h"

namespace maypole::bench {
namespace {

constexpr int kLooksBeforeYield = 2000;

}  // namespace

Status StartLine::Map(const std::string& path, int rank, int ranks,
                      std::unique_ptr<StartLine>* out) {
  if (rank < 0 || rank >= ranks || ranks > kMaxRanks) {
    return Status(Code::kInvalidArgument,
                  "start line: rank " + std::to_string(rank) + " of " +
                      std::to_string(ranks) + "; at most " +
                      std::to_string(kMaxRanks) + " ranks meet here");
  }
  const Fd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, "start line: opening " + path);
  constexpr size_t kBytes = sizeof(Cell) * kMaxRanks;
  void* page =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (page == MAP_FAILED) {
    return ErrnoStatus(errno, "start line: mapping " + path);
  }
  out->reset(new StartLine(Mapping(page, kBytes), rank, ranks));
  return Status();
}

StartLine::StartLine(Mapping page, int rank, int ranks)
    : page_(std::move(page)),
      cells_(reinterpret_cast<Cell*>(page_.data())),
      rank_(rank),
      ranks_(ranks),
      crowded_(AffinityCores() < static_cast<uint32_t>(ranks)) {}

void StartLine::Meet() {
  cells_[rank_].arrivals.store(++arrivals_, std::memory_order_release);
  for (int r = 0; r < ranks_; ++r) {
    for (int looks = 0;
         cells_[r].arrivals.load(std::memory_order_acquire) < arrivals_;
         ++looks) {
      if (crowded_ || looks > kLooksBeforeYield) {
        sched_yield();
      } else {
        __builtin_ia32_pause();
      }
    }
  }
}

}  // namespace maypole::bench
