// PrivateDirectory: a 0700 directory for the sockets and the secret of one
// job, removed with all in it at the end.
//
// Thread contract: a value, move only by construction; not synchronized.
#ifndef MAYPOLE_CLIENT_LAUNCHER_PROCESS_PRIVATE_DIRECTORY_H_
#define MAYPOLE_CLIENT_LAUNCHER_PROCESS_PRIVATE_DIRECTORY_H_

#include <string>

#include "common/status.h"

namespace maypole::launcher {

class PrivateDirectory {
 public:
  PrivateDirectory() = default;
  PrivateDirectory(const PrivateDirectory&) = delete;
  PrivateDirectory& operator=(const PrivateDirectory&) = delete;
  ~PrivateDirectory() { Remove(); }

  // Below the first usable of $XDG_RUNTIME_DIR, $TMPDIR and /tmp in which the
  // paths of sockets stay within what a unix address holds.
  Status Create();
  void Remove();

  // Empty: not created.
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// 256 random bits in hexadecimal.
std::string RandomHex();

// Writes a file that only its owner may read; it must not exist.
Status WriteSecretFile(const std::string& path, const std::string& secret);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_PROCESS_PRIVATE_DIRECTORY_H_
