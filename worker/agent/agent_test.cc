// Tests the real program, supervisor and executors, against a coordinator in
// this process and clients that speak the session protocol by hand.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/board/board.h"
#include "common/wire/session_messages.h"
#include "common/wire/unix_socket.h"
#include "worker/core/limits.h"
#include "worker/network/testing/fake_coordinator.h"

namespace maypole::worker {
namespace {

constexpr int kPatienceMs = 20000;

class Agent {
 public:
  // `log`: a file for stderr; by default it goes to the test's stderr.
  // `here`: in the current directory, where another agent may have been.
  explicit Agent(const std::string& coordinator, const char* log = nullptr,
                 bool here = false) {
    std::string dir = std::string(getenv("TEST_TMPDIR")) + "/aXXXXXX";
    if (!here) {
      EXPECT_NE(mkdtemp(dir.data()), nullptr);
      EXPECT_EQ(chdir(dir.c_str()), 0);  // socket paths are short
    }
    int announce[2];
    EXPECT_EQ(pipe(announce), 0);
    const std::string binary = std::string(getenv("TEST_SRCDIR")) + "/" +
                               getenv("TEST_WORKSPACE") +
                               "/worker/maypole-worker";
    std::vector<std::string> args = {
        binary,
        "--socket=agent.sock",
        "--coordinator=" + coordinator,
        "--node=n0",
        "--host=hosta",
        "--announce_fd=" + std::to_string(announce[1])};
    std::vector<char*> argv;
    for (std::string& a : args) argv.push_back(a.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      close(announce[0]);
      if (log != nullptr) {
        dup2(open(log, O_WRONLY | O_CREAT | O_APPEND, 0600), STDERR_FILENO);
      }
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(announce[1]);
    char line[256] = {};
    EXPECT_GT(read(announce[0], line, sizeof(line) - 1), 0);
    close(announce[0]);
    const std::string text = line;
    EXPECT_EQ(text.find("metrics=127.0.0.1:"), 0u) << line;
    // The path comes last, because it may contain spaces.
    EXPECT_EQ(text.substr(text.find(' ')), " socket=agent.sock\n") << line;
  }
  ~Agent() {
    if (pid_ > 0) {
      EXPECT_EQ(Terminate(), 0);
    }
  }

  pid_t pid() const { return pid_; }

  void Kill() {
    kill(pid_, SIGKILL);
    EXPECT_GT(waitpid(std::exchange(pid_, 0), nullptr, 0), 0);
  }

  // Its exit status.
  int Terminate() {
    kill(pid_, SIGTERM);
    int status = 0;
    EXPECT_EQ(waitpid(std::exchange(pid_, 0), &status, 0) > 0, true);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = 0;
};

// One rank of a job of two, both on this node.
class Rank {
 public:
  explicit Rank(int rank, const char* token = "token") {
    Connect();
    SayHello(rank, token);
  }
  Rank() { Connect(); }

  // `variables`: NAME=value, zero-terminated each.
  void SayHello(int rank, const char* token = "token",
                const std::string& variables = "") {
    auto hello = session::Make<session::Hello>();
    hello.rank = hello.local_rank = rank;
    hello.size = hello.local_size = 2;
    hello.pid = getpid();
    session::SetText(hello.job, "job");
    session::SetText(hello.token, token);
    session::SetText(hello.host, "hosta");
    hello.header.size = static_cast<uint32_t>(sizeof(hello) + variables.size());
    std::string message(reinterpret_cast<const char*>(&hello), sizeof(hello));
    message += variables;
    Send(message.data(), message.size());
  }
  void Connect() {
    const Status s = ConnectUnix("agent.sock", &socket_);
    ASSERT_TRUE(s.ok()) << s.message();
  }
  void Send(const void* data, size_t bytes) {
    const Status s = SendMessage(socket_.get(), data, bytes);
    ASSERT_TRUE(s.ok()) << s.message();
  }
  Received Receive() {
    Received r;
    const Status s = ReceiveMessage(socket_.get(), session::kMaxMessageBytes,
                                    kPatienceMs, &r);
    EXPECT_TRUE(s.ok()) << s.message();
    return r;
  }
  template <typename T>
  T Expect() {
    Received r = Receive();
    T out{};
    const Status s = session::Parse(r.data.data(), r.data.size(), &out);
    EXPECT_TRUE(s.ok()) << s.message();
    fds_ = std::move(r.fds);
    return out;
  }
  void AwaitWelcome() {
    EXPECT_EQ(Expect<session::Welcome>().epoch, 1u);
    ASSERT_EQ(fds_.size(), 2u);
    const Status s = Board::Attach(std::move(fds_[0]), &board_);
    ASSERT_TRUE(s.ok()) << s.message();
  }
  void RequestSlot(const std::string& name) {
    auto request = session::Make<session::SlotRequest>();
    request.request = 3;
    session::SetText(request.name, name);
    Send(&request, sizeof(request));
  }
  void Goodbye(uint32_t pending) {
    auto m = session::Make<session::Goodbye>();
    m.pending = pending;
    Send(&m, sizeof(m));
  }
  std::string AwaitAbort() {
    // Whether the executor closes or aborts, the board shows it first.
    for (int i = 0; i < kPatienceMs && !board_->aborted(); ++i) usleep(1000);
    return board_->AbortStatus().message();
  }
  void Close() { socket_.Reset(); }
  // Wakes the executor, as a rank does after it has changed the board.
  void WakeExecutor() {
    const uint64_t one = 1;
    EXPECT_EQ(write(fds_[1].get(), &one, sizeof(one)), ssize_t{sizeof(one)});
  }
  Board& board() { return *board_; }

 private:
  Fd socket_;
  std::vector<Fd> fds_;
  std::unique_ptr<Board> board_;
};

pid_t OnlyChild(pid_t parent) {
  const std::string p = std::to_string(parent);
  std::ifstream children("/proc/" + p + "/task/" + p + "/children");
  pid_t child = 0;
  children >> child;
  return child;
}

int64_t CpuNs(pid_t pid) {
  clockid_t clock;
  timespec t{};
  EXPECT_EQ(clock_getcpuclockid(pid, &clock), 0);
  EXPECT_EQ(clock_gettime(clock, &t), 0);
  return t.tv_sec * int64_t{1000000000} + t.tv_nsec;
}

// The most CPU time that a sleeping process may use in half a second. A process
// that is woken again and again uses all of it.
constexpr int64_t kAsleepNs = 100000000;

void ExpectAsleep(pid_t pid) {
  const int64_t before = CpuNs(pid);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_LT(CpuNs(pid) - before, kAsleepNs);
}

// Returns how many descriptors the process has in epoll, including those that
// it has closed while another process holds them.
int Watched(pid_t pid) {
  namespace fs = std::filesystem;
  const fs::path proc = "/proc/" + std::to_string(pid);
  int count = 0;
  for (const auto& entry : fs::directory_iterator(proc / "fd")) {
    std::error_code gone;
    if (fs::read_symlink(entry, gone) != "anon_inode:[eventpoll]") continue;
    std::ifstream info(proc / "fdinfo" / entry.path().filename());
    for (std::string word; info >> word;) count += word == "tfd:";
  }
  return count;
}

// Waits until the supervisor has handled all Hellos that were sent before; it
// handles events in order.
void AwaitSupervisor() {
  Rank garbage;
  garbage.Send("garbage", 7);
  garbage.Expect<session::Refused>();
}

class AgentTest : public testing::Test {
 protected:
  AgentTest() {
    coordinator_.on_message = [epoch = 0](
                                  const proto::ExecutorMessage& m,
                                  const FakeCoordinator::Reply& reply) mutable {
      if (!m.has_ranks_ready()) return;
      proto::CoordinatorMessage out;
      proto::EpochStart* start = out.mutable_epoch_start();
      start->set_epoch(++epoch);
      start->set_size(2);
      start->set_chunk_bytes(m.ranks_ready().chunk_bytes());
      proto::NodeInfo* node = start->add_nodes();
      node->set_protocol_version(kProtocolVersion);
      node->set_node("n0");
      node->set_host("hosta");
      node->add_ranks(0);
      node->add_ranks(1);
      reply(out);
    };
  }

  FakeCoordinator coordinator_;
  Agent agent_{coordinator_.address()};
};

TEST_F(AgentTest, WelcomesSlotsAndGoodbye) {
  Rank a(0), b(1);
  a.AwaitWelcome();
  b.AwaitWelcome();
  EXPECT_EQ(a.board().config().local_size, 2u);
  for (Rank* r : {&a, &b}) {
    r->RequestSlot("loss");
    const auto reply = r->Expect<session::SlotReply>();
    EXPECT_EQ(reply.code, 0u);
    EXPECT_EQ(reply.request, 3u);
    EXPECT_EQ(reply.slot, 0u);
    EXPECT_EQ(reply.negotiated, 0u);
  }
  b.Goodbye(0);
  for (int i = 0; i < kPatienceMs && a.board().header().left_count == 0; ++i) {
    usleep(1000);
  }
  EXPECT_NE(std::string(a.board().header().left_text).find("rank 1 (pid "),
            std::string::npos);
  EXPECT_FALSE(a.board().aborted());
  a.Goodbye(0);
  EXPECT_TRUE(a.Receive().data.empty());
}

TEST_F(AgentTest, InitRightAfterShutdownWithRequestsStillUnread) {
  Rank a(0), b(1);
  a.AwaitWelcome();
  b.AwaitWelcome();
  // While the executor is stopped, its sockets fill.
  const pid_t executor = OnlyChild(agent_.pid());
  ASSERT_GT(executor, 0);
  ASSERT_EQ(kill(executor, SIGSTOP), 0);
  for (Rank* r : {&a, &b}) {
    for (int i = 0; i < 100; ++i) r->RequestSlot("t" + std::to_string(i));
    r->Goodbye(0);
  }
  Rank again_a(0), again_b(1);
  AwaitSupervisor();
  ASSERT_EQ(kill(executor, SIGCONT), 0);
  EXPECT_EQ(again_a.Expect<session::Welcome>().local_rank, 0u);
  EXPECT_EQ(again_b.Expect<session::Welcome>().local_rank, 1u);
}

TEST_F(AgentTest, AClientThatWasHandedOverWakesTheAgentNoMore) {
  AwaitSupervisor();
  const int before = Watched(agent_.pid());
  Rank a(0), b(1);
  a.AwaitWelcome();
  b.AwaitWelcome();
  // The executor's control socket and its end.
  EXPECT_EQ(Watched(agent_.pid()), before + 2);
  // Nothing reads the ranks' messages now; an agent that still watched their
  // sockets would not sleep.
  const pid_t executor = OnlyChild(agent_.pid());
  ASSERT_EQ(kill(executor, SIGSTOP), 0);
  for (Rank* r : {&a, &b}) r->RequestSlot("loss");
  ExpectAsleep(agent_.pid());
  ASSERT_EQ(kill(executor, SIGCONT), 0);
  for (Rank* r : {&a, &b}) EXPECT_EQ(r->Expect<session::SlotReply>().code, 0u);
}

TEST_F(AgentTest, ABoardThatIsOverWakesTheExecutorNoMore) {
  Rank a(0), b(1);
  a.AwaitWelcome();
  b.AwaitWelcome();
  const pid_t executor = OnlyChild(agent_.pid());
  for (Rank* r : {&a, &b}) r->Goodbye(0);
  for (Rank* r : {&a, &b}) EXPECT_TRUE(r->Receive().data.empty());
  const int64_t cpu = CpuNs(executor);
  for (int i = 0; i < 5; ++i) {  // the board ends within the first of them
    a.WakeExecutor();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_LT(CpuNs(executor) - cpu, kAsleepNs);
}

TEST_F(AgentTest, DeathOfARankReachesTheOther) {
  Rank a(0), b(1);
  a.AwaitWelcome();
  b.AwaitWelcome();
  b.Close();
  EXPECT_EQ(a.AwaitAbort(),
            "rank 1 (pid " + std::to_string(getpid()) +
                ", host hosta, node n0) died: its connection closed without "
                "shutdown");
}

TEST_F(AgentTest, BrokenMessagesCountAsDeath) {
  Rank a(0), b(1);
  a.AwaitWelcome();
  b.AwaitWelcome();
  b.Send("garbage", 7);
  EXPECT_NE(a.AwaitAbort().find("it broke the session protocol"),
            std::string::npos);
}

TEST_F(AgentTest, OtherVersionIsToldBoth) {
  Rank r;
  auto hello = session::Make<session::Hello>();
  hello.header.version = 77;
  hello.newest_version = 78;
  r.Send(&hello, sizeof(hello));
  const auto refused = r.Expect<session::Refused>();
  EXPECT_EQ(refused.header.version, 77u) << "a client of 77 can read it";
  EXPECT_EQ(std::string(refused.text),
            "maypole-worker on node n0 speaks protocol version 1, but "
            "libmaypole of rank 0 speaks protocol versions 77 to 78; upgrade "
            "maypole-worker on node n0");
}

TEST_F(AgentTest, StrangersAreRefusedAndNobodyElseIsTouched) {
  Rank a(0);
  Rank garbage;
  garbage.Send("GET / HTTP/1.1\r\n\r\n", 18);
  EXPECT_NE(std::string(garbage.Expect<session::Refused>().text)
                .find("does not speak"),
            std::string::npos);
  Rank silent;
  Rank wrong(1, "guess");
  const auto refused = wrong.Expect<session::Refused>();
  EXPECT_EQ(refused.code, static_cast<uint32_t>(Code::kPermissionDenied));
  EXPECT_NE(std::string(refused.text).find("another token"), std::string::npos);
  Rank without(1, "");
  EXPECT_NE(std::string(without.Expect<session::Refused>().text)
                .find("another token"),
            std::string::npos);
  // A name without a terminating zero.
  Rank endless;
  auto hello = session::Make<session::Hello>();
  std::memset(hello.job, 'x', sizeof(hello.job));
  endless.Send(&hello, sizeof(hello));
  EXPECT_NE(endless.Expect<session::Refused>().code, 0u);
  Rank two_words;
  hello = session::Make<session::Hello>();
  session::SetText(hello.job, "a b");
  two_words.Send(&hello, sizeof(hello));
  EXPECT_EQ(std::string(two_words.Expect<session::Refused>().text),
            "the job id (MAYPOLE_JOB) must be 1 to 63 printable ASCII "
            "characters without spaces, quotes, slashes and backslashes, not "
            "'a b'");
  Rank twice(0);
  EXPECT_NE(std::string(twice.Expect<session::Refused>().text)
                .find("rank 0 is connected already"),
            std::string::npos);
  Rank b(1);
  a.AwaitWelcome();
  b.AwaitWelcome();
}

TEST_F(AgentTest, TheFirstRanksVariablesReachTheExecutor) {
  Rank hostile;
  hostile.SayHello(0, "token", std::string("LD_PRELOAD=/x.so\0", 17));
  EXPECT_EQ(
      std::string(hostile.Expect<session::Refused>().text),
      "the client's variables for NCCL and CUDA are malformed: "
      "'LD_PRELOAD' is not one of NCCL_* and CUDA_* that an executor takes");
  Rank endless;
  endless.SayHello(0, "token", std::string(kMaxVariablesBytes + 1, 'A'));
  EXPECT_EQ(endless.Expect<session::Refused>().code,
            static_cast<uint32_t>(Code::kInvalidArgument));
  EXPECT_EQ(OnlyChild(agent_.pid()), 0) << "an executor for a refused rank";

  Rank a, b;
  a.SayHello(0, "token", std::string("NCCL_SOCKET_IFNAME=^virbr0,lo\0", 30));
  AwaitSupervisor();
  b.SayHello(1, "token", std::string("NCCL_SOCKET_IFNAME=eth0\0", 24));
  a.AwaitWelcome();
  b.AwaitWelcome();
  // The executor is not dumpable, so only root may look.
  std::ifstream file("/proc/" + std::to_string(OnlyChild(agent_.pid())) +
                     "/environ");
  if (!file) GTEST_SKIP() << "only root can see an executor's environment";
  std::vector<std::string> environment;
  for (std::string v; std::getline(file, v, '\0');) environment.push_back(v);
  EXPECT_EQ(std::count(environment.begin(), environment.end(),
                       "NCCL_SOCKET_IFNAME=^virbr0,lo"),
            1);
  EXPECT_EQ(std::count(environment.begin(), environment.end(),
                       "NCCL_SOCKET_IFNAME=eth0"),
            0);
  EXPECT_EQ(std::count(environment.begin(), environment.end(),
                       std::string("PATH=") + getenv("PATH")),
            1)
      << "the agent's own";
}

TEST_F(AgentTest, ManyHalfOpenConnectionsDoNotBlockOthers) {
  std::vector<Rank> silent(200);
  Rank a(0), b(1);
  a.AwaitWelcome();
  b.AwaitWelcome();
}

TEST_F(AgentTest, AHelloThatCameWhileTheAgentStoodStillIsHeard) {
  Rank a;
  AwaitSupervisor();  // it has accepted
  ASSERT_EQ(kill(agent_.pid(), SIGSTOP), 0);
  a.SayHello(0);
  std::this_thread::sleep_for(std::chrono::milliseconds(kHelloTimeoutMs + 200));
  // Its epoll_wait ends with EINTR now, without an event.
  ASSERT_EQ(kill(agent_.pid(), SIGCONT), 0);
  Rank b(1);
  a.AwaitWelcome();
  b.AwaitWelcome();
}

TEST_F(AgentTest, SigtermEndsTheJobsWithAReason) {
  Rank a(0), b(1);
  a.AwaitWelcome();
  b.AwaitWelcome();
  EXPECT_EQ(agent_.Terminate(), 0);
  EXPECT_EQ(a.AwaitAbort(),
            "the executor of job 'job' on node n0 (host hosta) was stopped "
            "(SIGTERM)");
  struct stat st;
  EXPECT_NE(stat("agent.sock", &st), 0);
}

// The executor closes the connection of the rank that has already come, and the
// rank connects to the next agent.
TEST_F(AgentTest, AnAgentIsKilledAndStartedAgainWhileAJobStarts) {
  {
    Rank first(0);
    AwaitSupervisor();  // it has handed the rank over
    agent_.Kill();
    EXPECT_TRUE(first.Receive().data.empty());
  }
  Agent next(coordinator_.address(), nullptr, /*here=*/true);
  Rank a(0), b(1);
  a.AwaitWelcome();
  b.AwaitWelcome();
}

TEST_F(AgentTest, AnAgentIsKilledWhileAJobRuns) {
  Rank a(0), b(1);
  a.AwaitWelcome();
  b.AwaitWelcome();
  agent_.Kill();
  a.RequestSlot("loss");
  EXPECT_EQ(a.Expect<session::SlotReply>().code, 0u);
}

std::string ReadFile(const char* path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// The messages of ranks that wait for the executor point to the agent's log.
TEST(AgentWithAStoppedExecutor, TheLogNamesIt) {
  FakeCoordinator coordinator;
  Agent agent(coordinator.address(), "agent.log");
  Rank a(0);
  AwaitSupervisor();
  const pid_t executor = OnlyChild(agent.pid());
  ASSERT_EQ(kill(executor, SIGSTOP), 0);
  Rank b(1);
  const std::string said = "event=executor_stuck job=job uid=" +
                           std::to_string(geteuid()) +
                           " pid=" + std::to_string(executor);
  const auto logged = [&] {
    return ReadFile("agent.log").find(said) != std::string::npos;
  };
  for (int ms = 0; ms < kPatienceMs && !logged(); ms += 20) usleep(20000);
  const std::string log = ReadFile("agent.log");
  EXPECT_NE(log.find(said), std::string::npos) << log;
  EXPECT_NE(log.find("stopped=true"), std::string::npos) << log;
  EXPECT_EQ(kill(executor, SIGCONT), 0);
}

// An epoch within one node does not need the coordinator.
TEST_F(AgentTest, ALostCoordinatorDoesNotEndTheEpochOfANode) {
  Rank a(0);
  auto b = std::make_unique<Rank>(1);
  a.AwaitWelcome();
  b->AwaitWelcome();
  coordinator_.Stop();
  b.reset();
  EXPECT_EQ(a.AwaitAbort().find("rank 1 "), 0u) << a.AwaitAbort();
}

TEST(AgentWithoutDescriptors, WaitsQuietlyAndServesAgain) {
  Agent agent("127.0.0.1:1", "agent.log");
  AwaitSupervisor();
  rlimit before{};
  ASSERT_EQ(prlimit(agent.pid(), RLIMIT_NOFILE, nullptr, &before), 0);
  const rlimit none_free{3, before.rlim_max};
  ASSERT_EQ(prlimit(agent.pid(), RLIMIT_NOFILE, &none_free, nullptr), 0);
  const int64_t cpu = CpuNs(agent.pid());
  Rank waits;
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_LT(CpuNs(agent.pid()) - cpu, 500000000);
  const std::string log = ReadFile("agent.log");
  EXPECT_NE(log.find("event=accept_failed"), std::string::npos) << log;
  EXPECT_LE(std::count(log.begin(), log.end(), '\n'), 5) << log;
  ASSERT_EQ(prlimit(agent.pid(), RLIMIT_NOFILE, &before, nullptr), 0);
  waits.Send("garbage", 7);
  EXPECT_NE(
      std::string(waits.Expect<session::Refused>().text).find("of 7 bytes"),
      std::string::npos);
  // After a second without failures the agent logs that.
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  AwaitSupervisor();
  EXPECT_NE(ReadFile("agent.log").find("event=accepts_again"),
            std::string::npos);
}

TEST(AgentWithoutCoordinator, StartIsRefusedWithItsAddress) {
  int port = 0;
  { port = FakeCoordinator().port(); }
  Agent agent("127.0.0.1:" + std::to_string(port));
  Rank a(0);
  const auto refused = a.Expect<session::Refused>();
  EXPECT_EQ(refused.code, static_cast<uint32_t>(Code::kUnavailable));
  EXPECT_EQ(std::string(refused.text)
                .find("cannot reach the coordinator at 127.0.0.1:" +
                      std::to_string(port) + ": "),
            0u)
      << refused.text;
}

}  // namespace
}  // namespace maypole::worker
