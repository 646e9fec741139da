#include "worker/executor/state_store.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "common/limits.h"
#include "common/name.h"

namespace maypole::worker {
namespace {

// Memory that shrinks would kill a rank that reads it (SIGBUS); memory that
// grows would escape the limit.
Status SizeOfSealed(const Fd& state, uint64_t* bytes) {
  constexpr int kWanted = F_SEAL_SHRINK | F_SEAL_GROW;
  if (!state.valid()) {
    return Status(Code::kInvalidArgument,
                  "the state came without a descriptor; is this process out of "
                  "file descriptors (ulimit -n)?");
  }
  const int seals = fcntl(state.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kWanted) != kWanted) {
    return Status(Code::kInvalidArgument,
                  "a state must be a memfd with F_SEAL_SHRINK and F_SEAL_GROW");
  }
  struct stat info;
  if (fstat(state.get(), &info) != 0) {
    return ErrnoStatus(errno, "cannot read the size of the state");
  }
  *bytes = static_cast<uint64_t>(info.st_size);
  return Status();
}

}  // namespace

Status StateStore::Keep(const std::string& name, Fd state) {
  if (Status s = CheckName("the name of a state", name, kMaxStateNameBytes);
      !s.ok()) {
    return s;
  }
  uint64_t bytes = 0;
  if (Status s = SizeOfSealed(state, &bytes); !s.ok()) return s;
  const auto old = states_.find(name);
  const uint64_t others =
      bytes_ - (old == states_.end() ? 0 : old->second.bytes);
  if (bytes > limit_bytes_ - others) {
    return Status(
        Code::kResourceExhausted,
        "state '" + name + "' has " + std::to_string(bytes) +
            " bytes; with the job's other states (" + std::to_string(others) +
            ") that is more than the executor keeps (" +
            std::to_string(limit_bytes_) +
            "): raise --state_bytes of maypole-worker (maypolerun --agent-flag "
            "--state_bytes=N)");
  }
  if (old == states_.end() && states_.size() >= kMaxKeptStates) {
    return Status(Code::kResourceExhausted,
                  "the executor keeps " + std::to_string(kMaxKeptStates) +
                      " states of this job already, which is its limit");
  }
  states_[name] = State{std::move(state), bytes};
  bytes_ = others + bytes;
  return Status();
}

const Fd* StateStore::Find(const std::string& name) const {
  const auto it = states_.find(name);
  return it == states_.end() ? nullptr : &it->second.fd;
}

void StateStore::Drop(const std::string& name) {
  const auto it = states_.find(name);
  if (it == states_.end()) return;
  bytes_ -= it->second.bytes;
  states_.erase(it);
}

}  // namespace maypole::worker
