#include "client/launcher/service/service_shell.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "client/bootstrap/bootstrap_messages.h"
#include "common/system/fd.h"
#include "common/wire/unix_socket.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::launcher {
namespace {

using ::testing::HasSubstr;

constexpr int kPatienceSeconds = 20;

// Runs a service in a child process, so that the test sees its end. No daemon
// can be found there.
class ServiceShell : public ::testing::Test {
 protected:
  ServiceShell() {
    std::string pattern = "/tmp/msXXXXXX";  // short: it contains a socket
    directory_ = mkdtemp(pattern.data());
    service_ = fork();
    if (service_ == 0) Serve();
  }
  ~ServiceShell() override { std::filesystem::remove_all(directory_); }

  // Returns the service's answer to a rank. The rank stays connected.
  std::vector<std::string> Come(int rank) {
    Fd socket;
    const auto deadline = std::chrono::steady_clock::now() +
                          std::chrono::seconds(kPatienceSeconds);
    while (!ConnectUnix(directory_ + "/" + kServiceSocket, &socket).ok()) {
      if (std::chrono::steady_clock::now() >= deadline) return {"no service"};
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    const std::string place = Encode(RankMessage{.job = "j",
                                                 .node = "n",
                                                 .rank = rank,
                                                 .size = 2,
                                                 .local_rank = rank,
                                                 .local_size = 2});
    if (!SendMessage(socket.get(), place.data(), place.size()).ok()) {
      return {"the service has closed"};
    }
    Received answer;
    const Status s = ReceiveMessage(socket.get(), kMaxBootstrapBytes,
                                    kPatienceSeconds * 1000, &answer);
    if (!s.ok() || answer.data.empty()) return {"no answer " + s.message()};
    ranks_.push_back(std::move(socket));
    return Lines({answer.data.data(), answer.data.size()});
  }

  // Disconnects all ranks, so that the service ends; returns its wait status.
  int End() {
    ranks_.clear();
    int status = -1;
    waitpid(service_, &status, 0);
    return status;
  }

 private:
  [[noreturn]] void Serve() {
    alarm(2 * kPatienceSeconds);
    setenv("PATH", directory_.c_str(), 1);
    // With a coordinator the service starts only an agent, and does not look
    // for a running one.
    setenv("MAYPOLE_COORDINATOR", "127.0.0.1:1", 1);
    unsetenv("MAYPOLE_SECRET_FILE");
    NodeService service(directory_);
    if (!service.Start().ok()) _exit(1);
    service.Run();
    _exit(0);
  }

  std::string directory_;
  pid_t service_ = -1;
  std::vector<Fd> ranks_;
};

TEST_F(ServiceShell, ADaemonThatCannotBeStartedIsToldToAllRanks) {
  for (int rank = 0; rank < 2; ++rank) {
    const std::vector<std::string> answer = Come(rank);
    ASSERT_EQ(answer.size(), 3u) << answer[0];  // verb, code, text
    EXPECT_EQ(answer[0], kSayError);
    EXPECT_THAT(answer[2],
                HasSubstr("maypole-worker is neither beside maypolerun"));
  }
  const int status = End();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace maypole::launcher
