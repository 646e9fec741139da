// Fake GPUs in several real processes: this program starts itself again, with a
// role, for each other process.
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "worker/backend/gpu/testing/fake_gpu.h"

namespace maypole::gpu {
namespace {

constexpr uint64_t kBytes = 4 << 20;
constexpr int kSocket = 3;  // of a role

// --- Messages: bytes, and at most one descriptor -----------------------------

void Send(int socket, const void* data, size_t size, int fd = -1) {
  iovec part = {const_cast<void*>(data), size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  }
  if (sendmsg(socket, &message, MSG_NOSIGNAL) < 0) abort();
}

Fd Receive(int socket, void* data, size_t size) {
  iovec part = {data, size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  // A process of this test that has died is the end of all.
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) !=
      static_cast<ssize_t>(size)) {
    abort();
  }
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  int fd = -1;
  if (header != nullptr) memcpy(&fd, CMSG_DATA(header), sizeof(fd));
  return Fd(fd);
}

template <typename T>
void Send(int socket, const T& value, int fd = -1) {
  Send(socket, &value, sizeof(value), fd);
}
template <typename T>
T Receive(int socket, Fd* fd = nullptr) {
  T value;
  Fd received = Receive(socket, &value, sizeof(value));
  if (fd != nullptr) *fd = std::move(received);
  return value;
}

// --- Another process ---------------------------------------------------------

class Other {
 public:
  Other(const char* role, const std::string& machine,
        const char* host_id = "other") {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
      abort();
    }
    socket_ = Fd(pair[0]);
    Fd theirs(pair[1]);
    pid_ = fork();
    if (pid_ != 0) return;
    // Only what may be done beside other threads.
    if (dup2(theirs.get(), kSocket) < 0) _exit(1);
    if (theirs.get() == kSocket) fcntl(kSocket, F_SETFD, 0);
    const std::string variable = std::string(kFakeGpuVariable) + "=" + machine;
    const std::string host = std::string("NCCL_HOSTID=") + host_id;
    const char* const environment[] = {variable.c_str(), host.c_str(), nullptr};
    const char* const arguments[] = {"fake_processes_test", role, nullptr};
    execve("/proc/self/exe", const_cast<char**>(arguments),
           const_cast<char**>(environment));
    _exit(1);
  }
  ~Other() { Kill(); }

  int socket() const { return socket_.get(); }
  pid_t pid() const { return pid_; }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, -1), nullptr, 0);
  }

 private:
  Fd socket_;
  pid_t pid_ = -1;
};

std::unique_ptr<Gpu> OpenHere() {
  auto driver = OpenFakeDriver();
  if (!driver.ok()) abort();
  auto gpu = (*driver)->Open(FakeMachine::Uuid(0));
  if (!gpu.ok()) abort();
  return *std::move(gpu);
}

uint64_t& WordAt(Address address) {
  return *reinterpret_cast<uint64_t*>(address);
}

// True: `done` came true within 20 s.
bool Within20Seconds(const std::function<bool()>& done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// --- Roles -------------------------------------------------------------------

// Exports memory of a pattern, and lives until it is killed.
void Exporter() {
  auto gpu = OpenHere();
  const Memory memory = gpu->Allocate(kBytes).value();
  const Stream stream = gpu->CreateStream().value();
  if (!gpu->Fill(stream, memory.address, 0x11223344, kBytes / 4).ok()) abort();
  if (!gpu->Synchronize(stream).ok()) abort();
  Send(kSocket, memory.bytes, gpu->Export(memory.address)->get());
  pause();
}

// A page of flags comes from the test; every even hand-over is this process's.
void Player() {
  auto gpu = OpenHere();
  Fd fd;
  const auto rounds = Receive<uint64_t>(kSocket, &fd);
  Mapping page(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0),
      4096);
  const Address flags = gpu->RegisterHost(page.data(), page.size()).value();
  const Stream stream = gpu->CreateStream().value();
  for (uint64_t i = 1; i <= rounds; ++i) {
    if (!gpu->WaitValue(stream, flags, i).ok()) abort();
    if (!gpu->WriteValue(stream, flags + 8, i).ok()) abort();
  }
  Send(kSocket, gpu->Synchronize(stream).ok());
  pause();
}

// Records an interprocess event after a flag.
void Recorder() {
  auto gpu = OpenHere();
  Fd fd;
  const auto bytes = Receive<uint64_t>(kSocket, &fd);
  const Memory memory = gpu->Import(fd.get(), bytes).value();
  const Stream stream = gpu->CreateStream().value();
  const Event event = gpu->CreateEvent(EventUse::kInterprocess).value();
  if (!gpu->WaitValue(stream, memory.address, 1).ok()) abort();
  if (!gpu->Fill(stream, memory.address + 4096, 77, 1024).ok()) abort();
  if (!gpu->Record(event, stream).ok()) abort();
  Send(kSocket, gpu->ExportEvent(event).value());
  Receive<uint64_t>(kSocket);  // the test has what it wanted
  if (!gpu->DestroyEvent(event).ok()) abort();
  Send(kSocket, true);
  pause();
}

// Rank 1 of 2: joins, and calls AllReduce as often as it is told.
void Member() {
  auto gpu = OpenHere();
  const auto id = Receive<NcclId>(kSocket);
  const Communicator communicator = gpu->JoinCommunicator(id, 2, 1).value();
  const Stream stream = gpu->CreateStream().value();
  const Memory memory = gpu->Allocate(kBytes).value();
  const float ten = 10;
  uint32_t word;
  memcpy(&word, &ten, sizeof(word));
  while (true) {
    const auto elements = Receive<uint64_t>(kSocket);
    while (true) {
      const auto state = gpu->PollCommunicator(communicator);
      if (!state.ok()) abort();
      if (*state == CommunicatorState::kReady) break;
    }
    if (!gpu->Fill(stream, memory.address, word, elements).ok()) abort();
    if (!gpu->AllReduce(communicator, stream, memory.address, elements,
                        DType::kFloat32)
             .ok()) {
      abort();
    }
  }
}

const std::map<std::string, void (*)()> kRoles = {{"exporter", Exporter},
                                                  {"player", Player},
                                                  {"recorder", Recorder},
                                                  {"member", Member}};

// --- Tests -------------------------------------------------------------------

class FakeProcessesTest : public testing::Test {
 protected:
  FakeProcessesTest()
      : machine_(FakeMachine::Create({}).value()),
        driver_(FakeDriver::Create(machine_).value()),
        gpu_(driver_->Open(FakeMachine::Uuid(0)).value()) {}
  uint64_t Taken() {
    const auto room = gpu_->MemoryRoom();
    return room->total_bytes - room->free_bytes;
  }

  const std::shared_ptr<FakeMachine> machine_;
  const std::unique_ptr<FakeDriver> driver_;
  const std::unique_ptr<Gpu> gpu_;
};

TEST_F(FakeProcessesTest, MemoryOfAKilledProcessLivesWhileItIsImported) {
  Other exporter("exporter", machine_->environment());
  Fd fd;
  const auto bytes = Receive<uint64_t>(exporter.socket(), &fd);
  EXPECT_EQ(bytes, kBytes);
  EXPECT_EQ(Taken(), kBytes);
  const Memory memory = gpu_->Import(fd.get(), bytes).value();
  fd.Reset();
  EXPECT_EQ(Taken(), kBytes);
  exporter.Kill();
  EXPECT_EQ(Taken(), kBytes);
  EXPECT_EQ(WordAt(memory.address + kBytes - 8), 0x1122334411223344u);
  ASSERT_TRUE(gpu_->Free(memory.address).ok());
  EXPECT_EQ(Taken(), 0u);
}

TEST_F(FakeProcessesTest, MemoryOfAKilledProcessComesBackBeforeItIsReaped) {
  Other exporter("exporter", machine_->environment());
  Receive<uint64_t>(exporter.socket());
  EXPECT_EQ(Taken(), kBytes);
  kill(exporter.pid(), SIGKILL);
  EXPECT_TRUE(Within20Seconds([&] { return Taken() == 0; }));
}

TEST_F(FakeProcessesTest, FlagsInAPageGoBackAndForth) {
  constexpr uint64_t kRounds = 200;
  Other player("player", machine_->environment());
  const Fd fd(memfd_create("page", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(fd.get(), 4096), 0);
  const Mapping page(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0),
      4096);
  const Address flags = gpu_->RegisterHost(page.data(), 4096).value();
  Send(player.socket(), kRounds, fd.get());
  const Stream stream = gpu_->CreateStream().value();
  for (uint64_t i = 1; i <= kRounds; ++i) {
    ASSERT_TRUE(gpu_->WriteValue(stream, flags, i).ok());
    ASSERT_TRUE(gpu_->WaitValue(stream, flags + 8, i).ok());
  }
  ASSERT_TRUE(gpu_->Synchronize(stream).ok());
  EXPECT_TRUE(Receive<bool>(player.socket()));
  EXPECT_EQ(WordAt(flags), kRounds);
  EXPECT_EQ(WordAt(flags + 8), kRounds);
}

TEST_F(FakeProcessesTest, AnEventOfAnotherProcessIsWaitedFor) {
  Other recorder("recorder", machine_->environment());
  const Memory memory = gpu_->Allocate(kBytes).value();
  const Memory mine = gpu_->Allocate(kBytes).value();
  memset(reinterpret_cast<void*>(memory.address), 0, 8192);
  Send(recorder.socket(), memory.bytes, gpu_->Export(memory.address)->get());
  const auto handle = Receive<EventHandle>(recorder.socket());
  const Event event = gpu_->ImportEvent(handle).value();
  const Stream stream = gpu_->CreateStream().value();
  ASSERT_TRUE(gpu_->WaitEvent(stream, event).ok());
  ASSERT_TRUE(
      gpu_->Copy(stream, mine.address, memory.address + 4096, 4096).ok());
  EXPECT_FALSE(gpu_->EventDone(event).value());
  EXPECT_FALSE(gpu_->Done(stream).value());
  std::atomic_ref<uint64_t>(WordAt(memory.address)) = 1;  // by the host
  ASSERT_TRUE(gpu_->Synchronize(stream).ok());
  EXPECT_TRUE(gpu_->EventDone(event).value());
  EXPECT_EQ(WordAt(mine.address + 4088), 0x4d0000004du);

  Send(recorder.socket(), uint64_t{0});
  Receive<bool>(recorder.socket());  // it has destroyed the event
  const absl::Status late = gpu_->WaitEvent(stream, event);
  EXPECT_EQ(late.code(), absl::StatusCode::kFailedPrecondition) << late;
  EXPECT_EQ(gpu_->ImportEvent(handle).status().code(),
            absl::StatusCode::kInvalidArgument);
  recorder.Kill();
  EXPECT_EQ(gpu_->ImportEvent(handle).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// The state in which polling ends.
absl::StatusOr<CommunicatorState> Settled(Gpu& gpu, Communicator communicator) {
  absl::StatusOr<CommunicatorState> state = CommunicatorState::kInProgress;
  Within20Seconds([&] {
    state = gpu.PollCommunicator(communicator);
    return !state.ok() || *state == CommunicatorState::kReady;
  });
  return state;
}

TEST_F(FakeProcessesTest, TwoRanksOnOneDeviceAddUpIfTheirHostsDiffer) {
  driver_->SetHostId("one");
  Other member("member", machine_->environment(), "other");
  const NcclId id = gpu_->MakeNcclId().value();
  Send(member.socket(), id);
  const Communicator communicator = gpu_->JoinCommunicator(id, 2, 0).value();
  ASSERT_EQ(Settled(*gpu_, communicator).value(), CommunicatorState::kReady);
  const Memory memory = gpu_->Allocate(kBytes).value();
  const Stream stream = gpu_->CreateStream().value();
  const auto* sums = reinterpret_cast<const float*>(memory.address);
  for (const uint64_t elements : {uint64_t{3}, kBytes / 4}) {
    Send(member.socket(), elements);
    ASSERT_TRUE(
        gpu_->Fill(stream, memory.address, 0x3f800000, elements).ok());  // 1.0
    ASSERT_TRUE(gpu_->AllReduce(communicator, stream, memory.address, elements,
                                DType::kFloat32)
                    .ok());
    ASSERT_EQ(Settled(*gpu_, communicator).value(), CommunicatorState::kReady);
    ASSERT_TRUE(gpu_->Synchronize(stream).ok());
    EXPECT_EQ(sums[0], 11);
    EXPECT_EQ(sums[elements - 1], 11);
  }
  // The other does not call the next one, and dies: only an abort helps.
  ASSERT_TRUE(
      gpu_->AllReduce(communicator, stream, memory.address, 8, DType::kFloat32)
          .ok());
  member.Kill();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(gpu_->Done(stream).value());
  ASSERT_TRUE(gpu_->AbortCommunicator(communicator).ok());
  EXPECT_TRUE(gpu_->Synchronize(stream).ok());
}

TEST_F(FakeProcessesTest, TwoRanksOnOneDeviceOfOneHostAreRefused) {
  driver_->SetHostId("same");
  Other member("member", machine_->environment(), "same");
  const NcclId id = gpu_->MakeNcclId().value();
  Send(member.socket(), id);
  const Communicator communicator = gpu_->JoinCommunicator(id, 2, 0).value();
  const absl::Status status = Settled(*gpu_, communicator).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_NE(status.message().find("Duplicate GPU detected : rank 0 and rank 1"),
            std::string::npos)
      << status;
}

TEST(OpenFakeDriverTest, SaysThatTheMachineIsGone) {
  setenv(kFakeGpuVariable, "/proc/1/fd/12345", 1);
  const absl::Status status = OpenFakeDriver().status();
  unsetenv(kFakeGpuVariable);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_NE(status.message().find("/proc/1/fd/12345"), std::string::npos);
}

}  // namespace
}  // namespace maypole::gpu

int main(int argc, char** argv) {
  if (argc == 2) {
    const auto role = maypole::gpu::kRoles.find(argv[1]);
    if (role != maypole::gpu::kRoles.end()) {
      role->second();
      return 0;
    }
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
