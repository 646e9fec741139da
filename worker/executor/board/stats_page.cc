#include "worker/executor/board/stats_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <utility>

#include "common/absl_status.h"

namespace maypole::worker {
namespace {

constexpr size_t kPageBytes = 8192;
static_assert(sizeof(StatsPage) <= kPageBytes);

absl::StatusOr<Mapping> Map(int fd) {
  void* p =
      mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) return ToAbsl(ErrnoStatus(errno, "statistics page"));
  return Mapping(p, kPageBytes);
}

}  // namespace

std::string_view Name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kRankLost:
      return "rank_lost";
    case ErrorKind::kCoordinatorLost:
      return "coordinator_lost";
    case ErrorKind::kNetwork:
      return "network";
    case ErrorKind::kEpochAborted:
      return "epoch_aborted";
    case ErrorKind::kOperationFailed:
      return "operation_failed";
    case ErrorKind::kRefused:
      return "refused";
    case ErrorKind::kMismatch:
      return "mismatch";
  }
  return "unknown";
}

std::string_view Name(WaitFor what) {
  switch (what) {
    case WaitFor::kRanks:
      return "ranks";
    case WaitFor::kNodes:
      return "nodes";
    case WaitFor::kData:
      return "data";
    case WaitFor::kAgent:
      return "agent";
    case WaitFor::kInput:
      return "input";
  }
  return "unknown";
}

// A concurrent reader sees a rank with its own time, or no rank.
void StatsPage::SetRanks(std::span<const int32_t> ranks) {
  std::map<uint64_t, uint64_t> late, waited;
  for (int i = 0; i < kMaxLocalRanks; ++i) {
    const uint64_t number = rank_number[i].exchange(0);
    if (number == 0) continue;
    late[number] = late_ns[i].load();
    waited[number] = waited_ns[i].load();
  }
  for (size_t i = 0; i < ranks.size() && i < size_t{kMaxLocalRanks}; ++i) {
    const auto number = static_cast<uint64_t>(ranks[i]) + 1;
    late_ns[i].store(late[number]);
    waited_ns[i].store(waited[number]);
    rank_number[i].store(number);
  }
}

absl::StatusOr<SharedStats> SharedStats::Create() {
  Fd fd(memfd_create("maypole-stats", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid() || ftruncate(fd.get(), kPageBytes) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) !=
          0) {
    return ToAbsl(ErrnoStatus(errno, "statistics page"));
  }
  return Attach(std::move(fd));
}

absl::StatusOr<SharedStats> SharedStats::Attach(Fd fd) {
  struct stat st;
  if (fstat(fd.get(), &st) != 0 || st.st_size != kPageBytes) {
    return absl::InvalidArgumentError("the statistics page has a wrong size");
  }
  absl::StatusOr<Mapping> mapping = Map(fd.get());
  if (!mapping.ok()) return mapping.status();
  return SharedStats(std::move(fd), *std::move(mapping));
}

}  // namespace maypole::worker
