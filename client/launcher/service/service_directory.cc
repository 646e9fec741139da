#include "client/launcher/service/service_directory.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <vector>

#include "client/bootstrap/bootstrap_messages.h"
#include "client/launcher/process/private_directory.h"
#include "common/system/fd.h"

namespace maypole::launcher {
namespace {

namespace fs = std::filesystem;

constexpr char kGone[] = ".gone.";  // in names of directories being removed

bool HasLock(const std::string& directory, int lock) {
  struct stat ours, there;
  return fstat(lock, &ours) == 0 &&
         lstat((directory + "/" + kServiceLock).c_str(), &there) == 0 &&
         ours.st_ino == there.st_ino && ours.st_dev == there.st_dev;
}

bool IsOwnDirectory(const fs::path& path) {
  struct stat st;
  return lstat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode) &&
         st.st_uid == geteuid();
}

// A list of what is there now: entries may be removed while one goes through
// it.
std::vector<fs::path> EntriesOf(const fs::path& directory) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator i(directory, error), end; !error && i != end;
       i.increment(error)) {
    entries.push_back(i->path());
  }
  return entries;
}

}  // namespace

void RemoveServiceDirectory(const std::string& directory, int lock) {
  if (!HasLock(directory, lock)) return;
  const std::string gone = directory + kGone + RandomHex();
  if (rename(directory.c_str(), gone.c_str()) != 0) return;
  std::error_code ignored;  // at the end there is no way to handle it
  fs::remove_all(gone, ignored);
}

void EmptyServiceDirectory(const std::string& directory, int lock) {
  if (!HasLock(directory, lock)) return;
  std::error_code ignored;
  for (const fs::path& path : EntriesOf(directory)) {
    if (path.filename() != kServiceLock) fs::remove_all(path, ignored);
  }
}

void SweepBeside(const std::string& directory) {
  const fs::path own(directory);
  const std::string prefix = "maypole-" + std::to_string(geteuid()) + "-";
  for (const fs::path& path : EntriesOf(own.parent_path())) {
    const std::string name = path.filename();
    if (path == own || !name.starts_with(prefix) || !IsOwnDirectory(path)) {
      continue;
    }
    std::error_code ignored;
    if (name.find(kGone) != name.npos) {
      fs::remove_all(path, ignored);  // harmless if its owner still removes it
      continue;
    }
    // If the lock is free, no service uses it: a service holds its lock for its
    // whole life.
    const Fd lock(
        open((path / kServiceLock).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (lock.valid() && flock(lock.get(), LOCK_EX | LOCK_NB) == 0) {
      RemoveServiceDirectory(path, lock.get());
    }
  }
}

}  // namespace maypole::launcher
