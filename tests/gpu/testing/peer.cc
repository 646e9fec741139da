#include "tests/gpu/testing/peer.h"

#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>

#include "common/wire/unix_socket.h"
#include "tests/gpu/testing/device.h"
#include "tests/gpu/testing/peer_wire.h"

namespace maypole::cuda {
namespace {

constexpr char kPeerArgument[] = "--gpu-test-peer";
constexpr int kTimeoutMs = 120'000;  // a driver may take long to start

void Check(const Status& s) {
  if (!s.ok()) throw std::runtime_error("another process: " + s.message());
}

// Not by Spawn(): thread sanitizer stops to look at a process that calls
// clone() while it has threads.
pid_t StartSelf(int socket) {
  std::string name = "gpu-test-peer", argument = kPeerArgument;
  char* const arguments[] = {name.data(), argument.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, socket, kPeerSocket);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, "/proc/self/exe", &actions, nullptr,
                                arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("cannot start another process");
  return pid;
}

}  // namespace

Peer::Peer() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    throw std::runtime_error("cannot make a pair of sockets");
  }
  socket_ = Fd(ends[0]);
  const Fd theirs(ends[1]);
  pid_ = StartSelf(theirs.get());
}

Peer::~Peer() {
  if (pid_ < 0) return;
  socket_.Reset();
  waitpid(pid_, nullptr, 0);
}

void Peer::Kill() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void Peer::Start(const Request& request, int fd) {
  Check(SendMessage(socket_.get(), &request, sizeof(request),
                    std::span(&fd, fd < 0 ? 0 : 1)));
}

Answer Peer::Finish() {
  Received received;
  AnswerOnWire wire;
  Check(ReceiveMessage(socket_.get(), sizeof(wire), kTimeoutMs, &received));
  if (received.data.size() != sizeof(wire)) {
    throw std::runtime_error("the other process has ended");
  }
  std::memcpy(&wire, received.data.data(), sizeof(wire));
  Answer answer = {wire.result, wire.number, wire.handle};
  std::memcpy(answer.error, wire.error, sizeof(wire.error));
  if (!received.fds.empty()) answer.fd = std::move(received.fds[0]);
  return answer;
}

Answer Peer::Try(const Request& request, int fd) {
  Start(request, fd);
  return Finish();
}

Answer Peer::Ask(const Request& request, int fd) {
  Answer answer = Try(request, fd);
  if (answer.error[0] != 0) {
    throw CudaError(answer.result,
                    std::string("in another process: ") + answer.error);
  }
  return answer;
}

bool OthersCanUse(const Device& device) {
  if (device.Attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE) ==
      CU_COMPUTEMODE_DEFAULT) {
    return true;
  }
  // Under MPS, all processes count as one.
  return Peer().Try({Request::kOpenDevice}).error[0] == 0;
}

bool IsPeer(int argc, char** argv) {
  return argc == 2 && std::strcmp(argv[1], kPeerArgument) == 0;
}

uint64_t NowNanoseconds() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace maypole::cuda
