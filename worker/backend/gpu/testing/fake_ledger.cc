#include "worker/backend/gpu/testing/fake_ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/backend/gpu/testing/fake_shared.h"

namespace maypole::gpu {
namespace {

constexpr uint64_t kMagic = 0x6d61797066616b31;  // "maypfak1"
constexpr int kMaxDevices = 16;
constexpr int kMaxProcesses = 512;
constexpr int kMaxHolds = 8192;

// Returns the start time of a process from /proc, which tells it from a later
// process with the same pid; 0 if it has ended, even if it is not yet reaped.
uint64_t StartOf(pid_t pid) {
  std::ifstream in(absl::StrCat("/proc/", pid, "/stat"));
  const std::string text(std::istreambuf_iterator<char>(in), {});
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  fields >> field;  // the third of proc(5)
  if (field == "Z" || field == "X") return 0;
  for (int i = 4; i <= 22; ++i) fields >> field;
  return strtoull(field.c_str(), nullptr, 10);
}

template <size_t n>
void Put(char (&to)[n], const std::string& text) {
  strncpy(to, text.c_str(), n - 1);
}

}  // namespace

struct FakeLedger::Page {
  struct Device {
    char uuid[64], name[128], bus_id[32];
    int32_t major, minor, multiprocessors, copy_engines;
    uint64_t total_bytes;
    int32_t exports_memory, stream_flags;
  };
  struct Process {
    std::atomic<uint64_t> number;
    pid_t pid;
    uint64_t start;
  };
  struct Hold {
    std::atomic<uint64_t> process;
    uint64_t memory, bytes;
    int32_t device;
  };
  uint64_t magic;
  uint64_t machine;
  pthread_mutex_t mutex;
  int32_t device_count;
  Device devices[kMaxDevices];
  uint64_t next_process, next_memory;
  Process processes[kMaxProcesses];
  Hold holds[kMaxHolds];
};

class FakeLedger::Lock {
 public:
  explicit Lock(Page* page) : page_(page) {
    if (pthread_mutex_lock(&page_->mutex) == EOWNERDEAD) {
      pthread_mutex_consistent(&page_->mutex);
    }
  }
  ~Lock() { pthread_mutex_unlock(&page_->mutex); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  Page* const page_;
};

FakeLedger::FakeLedger(Fd fd, Mapping mapping, std::string path)
    : fd_(std::move(fd)),
      mapping_(std::move(mapping)),
      page_(reinterpret_cast<Page*>(mapping_.data())),
      path_(std::move(path)) {}

absl::StatusOr<std::unique_ptr<FakeLedger>> FakeLedger::Create(
    const std::vector<DeviceInfo>& devices) {
  if (devices.size() > kMaxDevices) {
    return absl::InvalidArgumentError(
        absl::StrCat("a fake machine has at most ", kMaxDevices,
                     " devices, not ", devices.size()));
  }
  absl::StatusOr<Fd> fd = MakeSharedFile("maypole-fake-machine", sizeof(Page));
  if (!fd.ok()) return fd.status();
  absl::StatusOr<Mapping> mapping = MapShared(fd->get(), sizeof(Page));
  if (!mapping.ok()) return mapping.status();
  std::string path = PathOfFd(fd->get());
  std::unique_ptr<FakeLedger> ledger(
      new FakeLedger(*std::move(fd), *std::move(mapping), std::move(path)));
  Page& page = *ledger->page_;
  page.device_count = static_cast<int32_t>(devices.size());
  for (size_t i = 0; i < devices.size(); ++i) {
    const DeviceInfo& from = devices[i];
    Page::Device& to = page.devices[i];
    Put(to.uuid, from.uuid);
    Put(to.name, from.name);
    Put(to.bus_id, from.bus_id);
    to.major = from.compute_major;
    to.minor = from.compute_minor;
    to.multiprocessors = from.multiprocessors;
    to.copy_engines = from.copy_engines;
    to.total_bytes = from.total_bytes;
    to.exports_memory = from.exports_memory;
    to.stream_flags = from.stream_flags;
  }
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&page.mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
  page.magic = kMagic;
  page.machine = ledger->machine_ = RandomNumber();
  ledger->devices_ = devices;
  return ledger;
}

absl::StatusOr<std::unique_ptr<FakeLedger>> FakeLedger::Open(
    const std::string& path) {
  Fd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat about = {};
  if (!fd.valid() || fstat(fd.get(), &about) != 0) {
    return absl::UnavailableError(absl::StrCat(
        "cannot open the fake machine ", path, ": ", strerror(errno),
        "; the process that made it must be alive"));
  }
  const absl::Status no_machine = absl::UnavailableError(
      absl::StrCat(path, " is no fake machine of this version"));
  if (about.st_size != sizeof(Page)) return no_machine;
  absl::StatusOr<Mapping> mapping = MapShared(fd.get(), sizeof(Page));
  if (!mapping.ok()) return mapping.status();
  std::unique_ptr<FakeLedger> ledger(
      new FakeLedger(Fd(), *std::move(mapping), path));
  const Page& page = *ledger->page_;
  if (page.magic != kMagic || page.device_count > kMaxDevices) {
    return no_machine;
  }
  ledger->machine_ = page.machine;
  for (int i = 0; i < page.device_count; ++i) {
    const Page::Device& from = page.devices[i];
    DeviceInfo to;
    to.uuid = from.uuid;
    to.name = from.name;
    to.bus_id = from.bus_id;
    to.compute_major = from.major;
    to.compute_minor = from.minor;
    to.multiprocessors = from.multiprocessors;
    to.copy_engines = from.copy_engines;
    to.total_bytes = from.total_bytes;
    to.exports_memory = from.exports_memory != 0;
    to.stream_flags = from.stream_flags != 0;
    ledger->devices_.push_back(std::move(to));
  }
  return ledger;
}

absl::StatusOr<uint64_t> FakeLedger::BeginProcess() {
  Lock lock(page_);
  Prune();
  for (Page::Process& process : page_->processes) {
    if (process.number != 0) continue;
    process.pid = getpid();
    process.start = StartOf(getpid());
    const uint64_t number = ++page_->next_process;
    process.number = number;
    return number;
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "a fake machine has at most ", kMaxProcesses, " processes at a time"));
}

void FakeLedger::EndProcess(uint64_t process) {
  Lock lock(page_);
  for (Page::Hold& hold : page_->holds) {
    if (hold.process == process) hold.process = 0;
  }
  for (Page::Process& slot : page_->processes) {
    if (slot.number == process) slot.number = 0;
  }
}

// Ends the processes whose real processes are gone.
void FakeLedger::Prune() {
  for (Page::Process& slot : page_->processes) {
    const uint64_t number = slot.number;
    if (number == 0 || slot.pid == getpid()) continue;
    if (StartOf(slot.pid) == slot.start) continue;
    for (Page::Hold& hold : page_->holds) {
      if (hold.process == number) hold.process = 0;
    }
    slot.number = 0;
  }
}

absl::StatusOr<uint64_t> FakeLedger::Take(uint64_t process, int device,
                                          uint64_t bytes) {
  Lock lock(page_);
  Prune();
  const uint64_t taken = TakenLocked(device);
  const uint64_t total = devices_[device].total_bytes;
  if (bytes > total || taken > total - bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("CUDA_ERROR_OUT_OF_MEMORY: ", bytes, " bytes asked for, ",
                     taken, " of ", total, " taken"));
  }
  const uint64_t memory = ++page_->next_memory;
  const absl::Status status = Write(process, memory, device, bytes);
  if (!status.ok()) return status;
  return memory;
}

absl::Status FakeLedger::Hold(uint64_t process, uint64_t memory, int device,
                              uint64_t bytes) {
  Lock lock(page_);
  return Write(process, memory, device, bytes);
}

absl::Status FakeLedger::Write(uint64_t process, uint64_t memory, int device,
                               uint64_t bytes) {
  for (Page::Hold& hold : page_->holds) {
    if (hold.process != 0) continue;
    hold.memory = memory;
    hold.bytes = bytes;
    hold.device = device;
    hold.process.store(process, std::memory_order_release);
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "a fake machine has at most ", kMaxHolds, " mappings of memory"));
}

void FakeLedger::Drop(uint64_t process, uint64_t memory) {
  Lock lock(page_);
  for (Page::Hold& hold : page_->holds) {
    if (hold.process != process || hold.memory != memory) continue;
    hold.process = 0;
    return;
  }
}

uint64_t FakeLedger::Taken(int device) {
  Lock lock(page_);
  Prune();
  return TakenLocked(device);
}

uint64_t FakeLedger::TakenLocked(int device) const {
  std::vector<std::pair<uint64_t, uint64_t>> memories;  // number, bytes
  for (const Page::Hold& hold : page_->holds) {
    if (hold.process != 0 && hold.device == device) {
      memories.emplace_back(hold.memory, hold.bytes);
    }
  }
  std::sort(memories.begin(), memories.end());
  memories.erase(std::unique(memories.begin(), memories.end()), memories.end());
  uint64_t taken = 0;
  for (const auto& [memory, bytes] : memories) taken += bytes;
  return taken;
}

}  // namespace maypole::gpu
