// A rank in a process of its own, as in a job: this program, started again.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "common/gpu/runner/testing/gpu_runner_fixture.h"
#include "common/wire/unix_socket.h"

namespace maypole {
namespace {

using cuda::CUDA_SUCCESS;
using cuda::fake::cuda;
using session::GpuSharing;

constexpr char kSocket[] = "RANK_SOCKET";
constexpr uint64_t kProof = 77;
constexpr float kRankValue = 2.5f, kOtherValue = 4.0f;
constexpr uint64_t kElements = 1000;

void Send(int socket, const void* data, size_t bytes,
          std::span<const int> fds = {}) {
  const Status s = SendMessage(socket, data, bytes, fds);
  EXPECT_TRUE(s.ok()) << s.message();
}

Received Receive(int socket) {
  Received message;
  const Status s = ReceiveMessage(socket, 4096, 20000, &message);
  EXPECT_TRUE(s.ok()) << s.message();
  return message;
}

std::vector<std::byte> Floats(float value) {
  const std::vector<float> floats(kElements, value);
  const auto bytes = std::as_bytes(std::span(floats));
  return {bytes.begin(), bytes.end()};
}

// --- The rank ----------------------------------------------------------------

class RankProcess : public cuda::fake::FakeTest {
 protected:
  const int socket_ = std::atoi(getenv(kSocket) ? getenv(kSocket) : "-1");

  // The executor has the memory: checks the proof, writes the tensor, and
  // checks the result.
  void TakePart(const RankMemory& memory) {
    uint64_t word = 0;
    std::memcpy(&word, memory.Read(0, sizeof(word)).data(), sizeof(word));
    EXPECT_EQ(word, kProof);
    memory.Write(0, Floats(kRankValue));
    Send(socket_, "written", 7);
    Receive(socket_);
    EXPECT_EQ(memory.Read(0, kElements * sizeof(float)),
              Floats(kRankValue + kOtherValue));
  }
};

TEST_F(RankProcess, DISABLED_WithADescriptor) {
  const RankMemory memory = CreateRankMemory(kGranularity, 0);
  const Fd fd = memory.Export();
  const int fds[] = {fd.get()};
  Send(socket_, "memory", 6, fds);
  Receive(socket_);
  TakePart(memory);
  DestroyRankMemory(memory);
}

TEST_F(RankProcess, DISABLED_WithAHandle) {
  Send(socket_, "please", 6);
  const Received reply = Receive(socket_);
  cuda::CUipcMemHandle handle = {};
  ASSERT_EQ(reply.data.size(), sizeof(handle));
  std::memcpy(&handle, reply.data.data(), sizeof(handle));
  RankMemory memory;
  ASSERT_EQ(cuda().cuIpcOpenMemHandle(&memory.address, handle,
                                      cuda::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
            CUDA_SUCCESS);
  TakePart(memory);
  EXPECT_EQ(cuda().cuIpcCloseMemHandle(memory.address), CUDA_SUCCESS);
}

// --- The executor ------------------------------------------------------------

class OtherProcessTest : public GpuRunnerFixture {
 protected:
  void StartRank(const std::string& name) {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    socket_ = Fd(ends[0]);
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    const Fd other(ends[1]);
    const std::string filter = "--gtest_filter=RankProcess.DISABLED_" + name;
    const std::string variable =
        std::string(kSocket) + "=" + std::to_string(ends[1]);
    std::vector<char*> environment;
    for (char** e = environ; *e != nullptr; ++e) {
      const std::string_view entry = *e;
      if (!entry.starts_with("XML_OUTPUT_FILE=")) environment.push_back(*e);
    }
    environment.push_back(const_cast<char*>(variable.c_str()));
    environment.push_back(nullptr);
    const char* const arguments[] = {
        "rank", filter.c_str(), "--gtest_also_run_disabled_tests", nullptr};
    ASSERT_EQ(
        posix_spawn(&rank_, "/proc/self/exe", nullptr, nullptr,
                    const_cast<char* const*>(arguments), environment.data()),
        0);
  }

  // The rank's memory is open: reduces it and one of this process.
  void ReduceWithRank() {
    Receive(socket_.get());  // the tensor is written
    const RankMemory mine = Create();
    ASSERT_TRUE(OpenNow({1, 1}, mine).ok());
    mine.Write(0, Floats(kOtherValue));
    runner().Run(SumOf({{0, 1}, {1, 1}}, kElements));
    EXPECT_TRUE(Ended(0).ok());
    Send(socket_.get(), "reduced", 7);
    int status = -1;
    EXPECT_EQ(waitpid(rank_, &status, 0), rank_);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(mine.Read(0, kElements * sizeof(float)),
              Floats(kRankValue + kOtherValue));
  }

  Fd socket_;
  pid_t rank_ = -1;
};

TEST_F(OtherProcessTest, SendsADescriptor) {
  StartRank("WithADescriptor");
  Received message = Receive(socket_.get());
  ASSERT_EQ(message.fds.size(), 1u);
  const auto opened = OpenNow(
      {0, 1},
      RequestOf(GpuSharing::kDescriptor, kGranularity, kProof, UuidOf(0)),
      std::move(message.fds[0]));
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  Send(socket_.get(), "open", 4);
  ReduceWithRank();
}

TEST_F(OtherProcessTest, OpensAHandle) {
  StartRank("WithAHandle");
  Receive(socket_.get());
  const auto opened = OpenNow(
      {0, 1},
      RequestOf(GpuSharing::kIpcHandle, kGranularity, kProof, UuidOf(0)), Fd());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  Send(socket_.get(), opened->ipc_handle, sizeof(opened->ipc_handle));
  ReduceWithRank();
}

}  // namespace
}  // namespace maypole
