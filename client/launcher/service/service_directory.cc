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
  std::error_code error;
  std::vector<fs::path> files;
  for (fs::directory_iterator i(directory, error), end; !error && i != end;
       i.increment(error)) {
    if (i->path().filename() != kServiceLock) files.push_back(i->path());
  }
  for (const fs::path& file : files) fs::remove_all(file, error);
}

void SweepBeside(const std::string& directory) {
  const fs::path own(directory);
  const std::string prefix = "maypole-" + std::to_string(geteuid()) + "-";
  std::error_code error;
  std::vector<fs::path> others;
  for (fs::directory_iterator i(own.parent_path(), error), end;
       !error && i != end; i.increment(error)) {
    const fs::path& path = i->path();
    if (path != own && path.filename().string().starts_with(prefix) &&
        IsOwnDirectory(path)) {
      others.push_back(path);
    }
  }
  for (const fs::path& path : others) {
    if (path.filename().string().find(kGone) != std::string::npos) {
      fs::remove_all(path, error);  // harmless if its owner still removes it
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
