#include "tests/gpu/fake/shared_state.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

#include "tests/gpu/fake/config.h"

namespace maypole::cuda::fake {
namespace {

struct Row {
  int64_t process;
  uint64_t start_time;
  int64_t gpu;
  uint64_t bytes;
};

Fd OpenFile(const std::string& path) {
  Fd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid()) Illegal("state: cannot open " + path);
  return fd;
}

std::vector<Row> ReadRows(int fd) {
  std::vector<Row> rows(lseek(fd, 0, SEEK_END) / sizeof(Row));
  const ssize_t bytes = pread(fd, rows.data(), rows.size() * sizeof(Row), 0);
  rows.resize(std::max<ssize_t>(bytes, 0) / sizeof(Row));
  return rows;
}

void WriteRows(int fd, const std::vector<Row>& rows) {
  const ssize_t bytes = static_cast<ssize_t>(rows.size() * sizeof(Row));
  if (pwrite(fd, rows.data(), bytes, 0) != bytes || ftruncate(fd, bytes) != 0) {
    Illegal("state: cannot write");
  }
}

bool SetOwner(int fd, int gpu, short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = gpu;
  lock.l_len = 1;
  return fcntl(fd, F_SETLK, &lock) == 0;
}

}  // namespace

SharedState::SharedState(const std::string& directory) {
  if (directory.empty()) return;
  memory_ = OpenFile(directory + "/memory");
  owners_ = OpenFile(directory + "/owners");
}

bool SharedState::Charge(int gpu, int64_t bytes, uint64_t limit) {
  if (memory_.valid()) flock(memory_.get(), LOCK_EX);
  const uint64_t now = mine_[gpu] + bytes;
  const bool fits = Update(gpu, now) <= limit || bytes < 0;
  if (fits) {
    mine_[gpu] = now;
  } else {
    Update(gpu, mine_[gpu]);
  }
  if (memory_.valid()) flock(memory_.get(), LOCK_UN);
  return fits;
}

uint64_t SharedState::Used(int gpu) {
  if (memory_.valid()) flock(memory_.get(), LOCK_EX);
  const uint64_t used = Update(gpu, mine_[gpu]);
  if (memory_.valid()) flock(memory_.get(), LOCK_UN);
  return used;
}

bool SharedState::Own(int gpu) {
  return !owners_.valid() || SetOwner(owners_.get(), gpu, F_WRLCK);
}

void SharedState::Disown(int gpu) {
  if (owners_.valid()) SetOwner(owners_.get(), gpu, F_UNLCK);
}

// Writes that this process uses `mine` bytes of the GPU, and removes the rows
// of dead processes. Returns what all use.
uint64_t SharedState::Update(int gpu, uint64_t mine) {
  if (!memory_.valid()) return mine;
  std::vector<Row> rows = ReadRows(memory_.get());
  std::erase_if(rows, [&](const Row& row) {
    const auto process = static_cast<pid_t>(row.process);
    return row.start_time != ProcessStartTime(process) ||
           (process == getpid() && row.gpu == gpu);
  });
  rows.push_back({getpid(), ProcessStartTime(getpid()), gpu, mine});
  WriteRows(memory_.get(), rows);
  uint64_t used = 0;
  for (const Row& row : rows) used += row.gpu == gpu ? row.bytes : 0;
  return used;
}

uint64_t ProcessStartTime(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  // If the process ends meanwhile, the read fails; an iterator would throw.
  std::getline(file, text, '\0');
  const size_t name_end = text.rfind(')');  // the name may contain anything
  if (name_end == text.npos) return 0;
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  for (int i = 3; i < 22; ++i) fields >> field;  // field 3 follows the name
  if (text[name_end + 2] == 'Z') return 0;  // dead, its parent has not waited
  uint64_t start_time = 0;
  fields >> start_time;
  return start_time;
}

}  // namespace maypole::cuda::fake
