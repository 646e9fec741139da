#include "tests/gpu/fake_nccl/root.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <utility>

#include "tests/gpu/fake_nccl/threads.h"
#include "tests/gpu/fake_nccl/wire.h"

namespace maypole::nccl::fake {
namespace {

struct Guest {
  Fd socket;
  Hello hello;
};
using Guests = std::map<int32_t, Guest>;

bool SameGpu(const Hello& a, const Hello& b) {
  return a.host == b.host && std::memcmp(&a.gpu, &b.gpu, sizeof(a.gpu)) == 0;
}

void Answer(const Guest& guest, Welcome welcome, const std::string& hub) {
  std::snprintf(welcome.hub, sizeof(welcome.hub), "%s", hub.c_str());
  SendBytes(guest.socket.get(), &welcome, sizeof(welcome));
}

// As in NCCL, the ranks of one GPU find that themselves, and the others that
// these have gone.
Welcome Judge(const Guests& guests, const Hello& own) {
  Welcome welcome = {.result = ncclSuccess, .text = {}, .hub = {}};
  for (const auto& [rank, guest] : guests) {
    for (const auto& [other_rank, other] : guests) {
      if (rank == other_rank || !SameGpu(guest.hello, other.hello)) continue;
      if (rank == own.rank) {
        welcome.result = ncclInvalidUsage;
        std::snprintf(welcome.text, sizeof(welcome.text),
                      "Duplicate GPU detected : rank %d and rank %d both on "
                      "CUDA device %d",
                      rank, other_rank, own.gpu.bytes[15]);
        return welcome;
      }
      welcome.result = ncclRemoteError;
      std::snprintf(welcome.text, sizeof(welcome.text),
                    "Connection closed by remote peer");
    }
  }
  return welcome;
}

void Serve(const Fd& listener) {
  Guests guests;
  int32_t ranks = 1;
  while (static_cast<int32_t>(guests.size()) < ranks) {
    Guest guest = {Fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)),
                   {}};
    if (!guest.socket.valid()) continue;
    const int socket = guest.socket.get();
    if (!ReceiveBytes(socket, &guest.hello, sizeof(guest.hello))) continue;
    const Hello& hello = guest.hello;
    if ((!guests.empty() && hello.ranks != ranks) ||
        guests.contains(hello.rank)) {
      std::fprintf(stderr,
                   "fake libnccl: Bootstrap Root : rank %d of %d ranks does "
                   "not fit to those that have checked in\n",
                   hello.rank, hello.ranks);
      Answer(
          guest,
          {ncclInternalError, "the rank or the number of ranks is wrong", ""},
          "");
      continue;
    }
    ranks = hello.ranks;
    guests.emplace(hello.rank, std::move(guest));
  }
  const std::string hub = guests.at(0).hello.hub;
  for (const auto& [rank, guest] : guests) {
    Answer(guest, Judge(guests, guest.hello), hub);
  }
}

}  // namespace

ncclResult_t StartRoot(ncclUniqueId* id) {
  std::string name;
  Fd listener = Listen(&name);
  if (!listener.valid()) return ncclSystemError;
  *id = {};
  std::copy(name.begin(), name.end(), id->internal);
  StartDetached([fd = listener.Release()] { Serve(Fd(fd)); });
  return ncclSuccess;
}

Fd FindRoot(const ncclUniqueId& id) {
  return Connect(
      std::string(id.internal, strnlen(id.internal, sizeof(id.internal))));
}

bool MeetRoot(int socket, const Hello& hello, Welcome* welcome) {
  return SendBytes(socket, &hello, sizeof(hello)) &&
         ReceiveBytes(socket, welcome, sizeof(*welcome));
}

uint64_t HostHash() {
  std::string host;
  if (const char* id = std::getenv("NCCL_HOSTID"); id != nullptr) {
    host = id;
  } else {
    char name[256] = {};
    gethostname(name, sizeof(name) - 1);
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    host = name + boot;
  }
  return std::hash<std::string>()(host);
}

}  // namespace maypole::nccl::fake
