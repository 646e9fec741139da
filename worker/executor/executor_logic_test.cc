#include "worker/executor/executor_logic.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/board/gpu_place.h"
#include "worker/core/limits.h"

namespace maypole::worker {
namespace {

using Kind = ExecutorEvent::Kind;

// What a client has sent and received, and whether the executor holds it.
struct FakeClient {
  std::deque<std::vector<char>> sent;
  std::vector<std::vector<char>> received;
  bool linked = false;
  bool welcomed = false;
  uint32_t version = 0;  // as Welcome says
  Fd descriptor;         // comes with the next message
  int states_sent = 0;

  template <typename Message>
  void Send(const Message& message) {
    const char* data = reinterpret_cast<const char*>(&message);
    sent.emplace_back(data, data + sizeof(message));
  }
};

class FakeLink : public ClientLink {
 public:
  explicit FakeLink(FakeClient* client) : client_(client) {
    client_->linked = true;
  }
  ~FakeLink() override { client_->linked = false; }

  Status Receive(std::vector<char>* message, Fd* descriptor) override {
    if (client_->sent.empty()) return Status(Code::kDeadlineExceeded, "none");
    *descriptor = std::move(client_->descriptor);
    *message = std::move(client_->sent.front());
    client_->sent.pop_front();
    return Status();
  }
  Status Send(const void* data, size_t bytes) override {
    const char* first = static_cast<const char*>(data);
    client_->received.emplace_back(first, first + bytes);
    return Status();
  }
  Status SendWelcome(const session::Welcome& welcome, const Board&,
                     const BoardWake&) override {
    client_->welcomed = true;
    client_->version = welcome.header.version;
    return Status();
  }
  Status SendState(const session::StateReply& reply, const Fd* state) override {
    client_->states_sent += state == nullptr ? 0 : 1;
    return Send(&reply, sizeof(reply));
  }
  Status Flush() override { return Status(); }
  std::unique_ptr<ProcessWatch> KeepProcess() override { return nullptr; }

 private:
  FakeClient* const client_;
};

class FakeWake : public BoardWake {
 public:
  explicit FakeWake(int* count) : count_(count) { ++*count_; }
  ~FakeWake() override { --*count_; }
  void Drain() override {}

 private:
  int* const count_;
};

class FakeTransport : public Transport {
 public:
  explicit FakeTransport(std::vector<proto::ExecutorMessage>* sent)
      : sent_(sent) {}
  uint64_t Send(proto::ExecutorMessage message) override {
    sent_->push_back(std::move(message));
    return sent_->size();
  }
  void TakeRelayed(const std::string&, proto::CoordinatorMessage) override {}

 private:
  std::vector<proto::ExecutorMessage>* const sent_;
};

class FakeGpus : public EpochGpus {
 public:
  explicit FakeGpus(std::vector<std::string>* calls) : calls_(calls) {}
  ~FakeGpus() override { calls_->push_back("gone"); }
  void Open(GpuMemoryId id, const session::GpuMemoryRequest&,
            Fd memory) override {
    calls_->push_back("open " + std::to_string(id.local) + "." +
                      std::to_string(id.number) +
                      (memory.valid() ? " with its descriptor" : ""));
  }
  void Close(uint32_t local) override {
    calls_->push_back("close " + std::to_string(local));
  }
  void MakeCommunicatorId(uint32_t number) override {
    calls_->push_back("id " + std::to_string(number & 0xffff));
  }
  void Connect(GpuCommunicator c, std::string id) override {
    calls_->push_back("connect " + std::to_string(c.number & 0xffff) + " " +
                      id);
  }
  void Abort() override { calls_->push_back("abort"); }
  void Run(GpuRun run) override {
    const GpuOperation& r = run.operations.front();
    calls_->push_back("reduce " + std::to_string(r.slot) + ":" +
                      std::to_string(r.generation));
  }

 private:
  std::vector<std::string>* const calls_;
};

// A network that is there as soon as it is asked for.
class FakeNetwork : public EpochNetwork {
 public:
  explicit FakeNetwork(Callbacks callbacks)
      : callbacks_(std::move(callbacks)) {}
  void Prepare(uint32_t, uint32_t) override {
    callbacks_.on_prepared(std::vector<std::string>{"address"});
  }
  void Connect(std::vector<std::string>) override {
    callbacks_.on_connected(absl::OkStatus());
  }
  void Start(const Board*) override {}
  void Add(RunSpec) override {}
  void Abort() override {}
  void SendToPeers(const std::vector<uint32_t>&,
                   const proto::PeerMessage&) override {}
  PeerMessages TakePeerMessages() override { return {}; }
  uint64_t bytes_sent() const override { return 0; }
  uint64_t bytes_received() const override { return 0; }

 private:
  const Callbacks callbacks_;
};

class ExecutorLogicTest : public testing::Test,
                          protected ExecutorSystem,
                          protected ExecutorObserver {
 protected:
  ExecutorLogicTest()
      : logic_({.job = "job",
                .node = "n0",
                .host = "hosta",
                .slots = 64,
                .chunk_bytes = 4096,
                .ring_depth = 2},
               this, this) {}

  // The supervisor hands a client over.
  FakeClient& Connect(const session::Hello& hello) {
    clients_.emplace_back();
    arriving_.push_back({hello, hello.pid});
    Turn({{Kind::kHandOver}});
    return clients_.back();
  }
  void Turn(std::vector<ExecutorEvent> events = {}) {
    if (!posted_.empty()) events.push_back({Kind::kPosted});
    logic_.Wake(events);
    logic_.PrepareSleep();
  }
  void Hear(const proto::CoordinatorMessage& message) {
    callbacks_.on_message(message);
    Turn();
  }

  static session::Hello Rank(int rank, int size) {
    auto hello = session::Make<session::Hello>();
    hello.rank = hello.local_rank = rank;
    hello.size = hello.local_size = size;
    hello.pid = 100 + rank;
    session::SetText(hello.job, "job");
    return hello;
  }
  static session::Hello Elastic(int pid) {
    auto hello = session::Make<session::Hello>();
    hello.rank = -1;
    hello.elastic = 1;
    hello.min_size = 1;
    hello.max_size = 1000;
    hello.pid = pid;
    session::SetText(hello.job, "job");
    return hello;
  }
  static proto::CoordinatorMessage Start(int ranks) {
    proto::CoordinatorMessage m;
    proto::EpochStart* start = m.mutable_epoch_start();
    start->set_epoch(1);
    start->set_size(static_cast<uint32_t>(ranks));
    start->set_chunk_bytes(524288);
    proto::NodeInfo* node = start->add_nodes();
    node->set_protocol_version(kProtocolVersion);
    node->set_node("n0");
    node->set_host("hosta");
    for (int i = 0; i < ranks; ++i) node->add_ranks(static_cast<uint32_t>(i));
    return m;
  }

  // ExecutorSystem
  int64_t NowNs() override { return now_ms_ * 1000000; }
  void Post(std::function<void()> function) override {
    posted_.push_back(std::move(function));
  }
  std::vector<std::function<void()>> TakePosted() override {
    return std::exchange(posted_, {});
  }
  HandOver TakeClient(ClientId, ArrivingClient* client,
                      std::unique_ptr<ClientLink>* link) override {
    if (arriving_.empty()) {
      return supervised_ ? HandOver::kNone : HandOver::kSupervisorGone;
    }
    *client = arriving_.front();
    arriving_.pop_front();
    if (lost_) return HandOver::kLost;
    *link = std::make_unique<FakeLink>(&clients_.back());
    return HandOver::kClient;
  }
  void ReportIdle(uint64_t received) override { idle_with_ = received; }
  std::unique_ptr<Transport> OpenTransport(
      TransportCallbacks callbacks) override {
    callbacks_ = std::move(callbacks);
    return std::make_unique<FakeTransport>(&to_coordinator_);
  }
  std::unique_ptr<EpochNetwork> MakeNetwork(
      const PrepareBackend&, EpochNetwork::Callbacks callbacks) override {
    return std::make_unique<FakeNetwork>(std::move(callbacks));
  }
  Status CreateBoard(const BoardConfig& config, uint32_t version,
                     std::unique_ptr<Board>* board) override {
    BoardConfig c = config;
    c.eager_bytes = 64;
    c.pool_buffers = 1;
    return Board::Create(c, board, version);
  }
  std::unique_ptr<EpochGpus> MakeGpus(EpochGpus::Callbacks callbacks) override {
    gpu_callbacks_ = std::move(callbacks);
    return std::make_unique<FakeGpus>(&gpu_calls_);
  }
  std::unique_ptr<BoardWake> MakeBoardWake() override {
    return std::make_unique<FakeWake>(&wakes_);
  }
  void EndProcess(const std::string& reason) override { ended_with_ = reason; }

  // ExecutorObserver
  void OnClientRefused(int rank, const std::string& reason) override {
    refused_.push_back(std::to_string(rank) + ": " + reason);
  }
  void OnClientGone(int rank, const std::string& how) override {
    gone_.push_back(std::to_string(rank) + ": " + how);
  }
  void OnScan(const BoardSnapshot&) override { ++scans_; }
  void FillStats(proto::NodeStats* stats) override { stats->set_steps(scans_); }

  int64_t now_ms_ = 1000;
  std::deque<FakeClient> clients_;
  std::deque<ArrivingClient> arriving_;
  std::vector<std::function<void()>> posted_;
  TransportCallbacks callbacks_;
  EpochGpus::Callbacks gpu_callbacks_;
  std::vector<std::string> gpu_calls_;
  std::string ended_with_;
  std::vector<proto::ExecutorMessage> to_coordinator_;
  int wakes_ = 0;
  bool lost_ = false;
  bool supervised_ = true;
  uint64_t idle_with_ = 0;
  std::vector<std::string> refused_;
  std::vector<std::string> gone_;
  uint64_t scans_ = 0;
  ExecutorLogic logic_;
};

TEST_F(ExecutorLogicTest, AClientTooManyIsToldSo) {
  std::vector<uint64_t> first;
  for (int i = 0; i < static_cast<int>(kMaxLocalRanks); ++i) {
    Connect(Elastic(1000 + i));
    first.push_back(static_cast<uint64_t>(i) + 1);
  }
  proto::CoordinatorMessage start = Start(static_cast<int>(kMaxLocalRanks));
  start.mutable_epoch_start()->mutable_clients()->Add(first.begin(),
                                                      first.end());
  Hear(start);
  ASSERT_TRUE(clients_.front().welcomed);
  while (logic_.clients() < kMaxClients) {
    Connect(Elastic(2000 + static_cast<int>(logic_.clients())));
  }
  ASSERT_TRUE(refused_.empty()) << refused_.front();

  const FakeClient& last = Connect(Elastic(3000));
  ASSERT_EQ(last.received.size(), 1u);
  session::Refused refused;
  ASSERT_TRUE(
      session::Parse(last.received[0].data(), last.received[0].size(), &refused)
          .ok());
  EXPECT_EQ(refused.code, static_cast<uint32_t>(Code::kResourceExhausted));
  EXPECT_NE(std::string(refused.text).find("'job'"), std::string::npos);
  EXPECT_NE(std::string(refused.text).find("128 processes already"),
            std::string::npos)
      << refused.text;
  ASSERT_EQ(refused_.size(), 1u);
  EXPECT_EQ(refused_[0], "-1: " + std::string(refused.text));
  EXPECT_FALSE(last.linked);
  EXPECT_EQ(logic_.clients(), kMaxClients);
}

// The versions of the messages that a client has received.
std::set<uint32_t> VersionsIn(const FakeClient& client) {
  std::set<uint32_t> versions;
  for (const std::vector<char>& message : client.received) {
    session::Header header;
    std::memcpy(&header, message.data(), sizeof(header));
    versions.insert(header.version);
  }
  return versions;
}

// Otherwise a rate computed from two messages would cover fewer or more scans
// than the time between them.
TEST_F(ExecutorLogicTest, StatisticsAreOfTheMomentInWhichTheyAreSent) {
  for (int rank = 0; rank < 2; ++rank) Connect(Rank(rank, 2));
  Hear(Start(2));
  proto::CoordinatorMessage watch;
  watch.set_epoch(1);
  watch.mutable_watch_stats()->set_every_ms(1000);
  watch.mutable_watch_stats()->set_for_ms(15000);
  Hear(watch);
  int messages = 0;
  for (int i = 0; i < 20; ++i) {
    now_ms_ += 100;
    const uint64_t before = scans_;
    const size_t sent = to_coordinator_.size();
    logic_.Wake({});
    for (size_t m = sent; m < to_coordinator_.size(); ++m) {
      if (!to_coordinator_[m].has_node_stats()) continue;
      EXPECT_GT(to_coordinator_[m].node_stats().steps(), before);
      EXPECT_EQ(to_coordinator_[m].node_stats().time_ms(), now_ms_);
      ++messages;
    }
  }
  EXPECT_EQ(messages, 2);
}

TEST_F(ExecutorLogicTest, RanksOfDifferentVersionsUseTheSmallestOne) {
  session::Hello old = Rank(0, 2), current = Rank(1, 2);
  old.header.version = current.header.version = 1;
  old.newest_version = 1;
  current.newest_version = 2;
  FakeClient& rank0 = Connect(old);
  FakeClient& rank1 = Connect(current);
  Hear(Start(2));
  EXPECT_EQ(logic_.board()->header().version, 1u);
  for (FakeClient* client : {&rank0, &rank1}) {
    EXPECT_EQ(client->version, 1u);
    auto request = session::Make<session::SlotRequest>();
    session::SetText(request.name, "x");
    session::SetVersion(&request, 1);
    client->Send(request);
  }
  Turn({{Kind::kClient, 1}, {Kind::kClient, 2}});
  EXPECT_EQ(VersionsIn(rank0), std::set<uint32_t>{1});
  EXPECT_EQ(VersionsIn(rank1), std::set<uint32_t>{1});
}

TEST_F(ExecutorLogicTest, ARankIsRefusedInAVersionThatItReads) {
  session::Hello wrong = Rank(0, 2);
  wrong.header.version = 1;
  wrong.local_rank = 7;
  EXPECT_EQ(VersionsIn(Connect(wrong)), std::set<uint32_t>{1});
}

// The process ends with unread messages. They still count, however many there
// are.
TEST_F(ExecutorLogicTest, AGoodbyeBehindManyRequestsIsNoDeath) {
  FakeClient& rank0 = Connect(Rank(0, 2));
  Connect(Rank(1, 2));
  Hear(Start(2));
  ASSERT_TRUE(rank0.welcomed);
  for (int i = 0; i < 50; ++i) {
    auto request = session::Make<session::SlotRequest>();
    request.request = static_cast<uint32_t>(i);
    session::SetText(request.name, "n" + std::to_string(i));
    rank0.Send(request);
  }
  rank0.Send(session::Make<session::Goodbye>());
  Turn({{Kind::kProcessEnded, 1}});
  EXPECT_TRUE(gone_.empty()) << gone_.front();
  EXPECT_FALSE(rank0.linked);
  EXPECT_EQ(rank0.received.size(), 50u);  // each name has its slot
}

TEST_F(ExecutorLogicTest, AProcessThatEndsWithoutGoodbyeHasDied) {
  const FakeClient& rank0 = Connect(Rank(0, 2));
  Connect(Rank(1, 2));
  Hear(Start(2));
  Turn({{Kind::kProcessEnded, 1}});
  ASSERT_EQ(gone_.size(), 1u);
  EXPECT_EQ(gone_[0], "0: its process ended without shutdown");
  EXPECT_FALSE(rank0.linked);
  EXPECT_TRUE(logic_.board()->aborted());
}

// The supervisor lets an idle executor end once it has received all clients
// that were handed over.
TEST_F(ExecutorLogicTest, AClientWhoseConnectionIsLostIsCountedAndLogged) {
  lost_ = true;
  arriving_.push_back({Rank(1, 2), 101});
  Turn({{Kind::kHandOver}});
  ASSERT_EQ(refused_.size(), 1u);
  EXPECT_EQ(refused_[0].substr(0, 17), "1: its connection");
  EXPECT_EQ(logic_.clients(), 0u);
  now_ms_ += 2 * kIdleMs;
  Turn();
  EXPECT_EQ(idle_with_, 1u);
}

// An elastic rank that leaves its state with the executor.
class ExecutorLogicStateTest : public ExecutorLogicTest {
 protected:
  static Fd Memory(int seals) {
    Fd fd(memfd_create("state", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(ftruncate(fd.get(), 100), 0);
    EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
    return fd;
  }
  // Client number `id` sends the request; returns the reply.
  session::StateReply Ask(ClientId id, session::StateCall call, Fd state = {},
                          const std::string& name = "state") {
    FakeClient& client = clients_[id - 1];
    auto request = session::Make<session::StateRequest>();
    request.number = 7;
    request.call = static_cast<uint32_t>(call);
    session::SetText(request.name, name);
    client.descriptor = std::move(state);
    client.Send(request);
    Turn({{Kind::kClient, id}});
    session::StateReply reply;
    const std::vector<char>& last = client.received.back();
    EXPECT_TRUE(session::Parse(last.data(), last.size(), &reply).ok());
    EXPECT_EQ(reply.number, 7u);
    return reply;
  }
  static constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
};

TEST_F(ExecutorLogicStateTest, OutlivesTheRankUntilItIsDropped) {
  Connect(Elastic(1));
  EXPECT_EQ(Ask(1, session::StateCall::kFind).code,
            static_cast<uint32_t>(Code::kNotFound));
  EXPECT_EQ(Ask(1, session::StateCall::kKeep, Memory(kSeals)).code, 0u);
  Turn({{Kind::kProcessEnded, 1}});
  EXPECT_EQ(logic_.clients(), 0u);

  // All processes have died: the executor waits --state_timeout for new ones.
  now_ms_ += ExecutorCoreOptions().state_timeout_ms - 1;
  Turn();
  EXPECT_EQ(idle_with_, 0u);

  const FakeClient& second = Connect(Elastic(2));
  EXPECT_EQ(second.states_sent, 0);
  EXPECT_EQ(Ask(2, session::StateCall::kFind).code, 0u);
  EXPECT_EQ(second.states_sent, 1);
  EXPECT_EQ(Ask(2, session::StateCall::kDrop).code, 0u);
  EXPECT_EQ(Ask(2, session::StateCall::kFind).code,
            static_cast<uint32_t>(Code::kNotFound));
  Turn({{Kind::kProcessEnded, 2}});
  now_ms_ += kIdleMs;
  Turn();
  EXPECT_EQ(idle_with_, 2u);
}

TEST_F(ExecutorLogicStateTest, EndsWhenNobodyComesForIt) {
  Connect(Elastic(1));
  Ask(1, session::StateCall::kKeep, Memory(kSeals));
  Turn({{Kind::kProcessEnded, 1}});
  now_ms_ += ExecutorCoreOptions().state_timeout_ms;
  Turn();
  EXPECT_EQ(idle_with_, 1u);
}

TEST_F(ExecutorLogicStateTest, BadRequestsAreAnsweredAndChangeNothing) {
  Connect(Elastic(1));
  const auto code = [](Code c) { return static_cast<uint32_t>(c); };
  using session::StateCall;
  EXPECT_EQ(Ask(1, StateCall::kKeep).code, code(Code::kInvalidArgument));
  EXPECT_EQ(Ask(1, StateCall::kKeep, Memory(0)).code,
            code(Code::kInvalidArgument));
  EXPECT_EQ(Ask(1, StateCall::kKeep, Memory(kSeals), "a/b").code,
            code(Code::kInvalidArgument));
  EXPECT_EQ(Ask(1, static_cast<StateCall>(99)).code,
            code(Code::kInvalidArgument));
  EXPECT_EQ(Ask(1, StateCall::kFind).code, code(Code::kNotFound));
  EXPECT_EQ(logic_.clients(), 1u);
  EXPECT_TRUE(gone_.empty());
}

// Two ranks whose tensors are on a GPU.
class ExecutorLogicGpuTest : public ExecutorLogicTest {
 protected:
  void StartWithGpu() {
    for (int rank : {0, 1}) Connect(Rank(rank, 2));
    Hear(Start(2));
    for (uint32_t local : {0, 1}) {
      auto request = session::Make<session::GpuMemoryRequest>();
      request.number = 1;
      request.bytes = 4096;
      request.sharing = static_cast<uint32_t>(session::GpuSharing::kDescriptor);
      if (local == 1) clients_[local].descriptor = Fd(dup(STDERR_FILENO));
      clients_[local].Send(request);
      Turn({{Kind::kClient, local + 1}});
      gpu_callbacks_.on_opened({local, 1}, OpenedGpuMemory{});
    }
    auto request = session::Make<session::SlotRequest>();
    session::SetText(request.name, "x");
    for (uint32_t local : {0, 1}) clients_[local].Send(request);
    Turn({{Kind::kClient, 1}, {Kind::kClient, 2}});
    gpu_calls_.clear();
  }
  void ArriveOnGpu(uint32_t generation) {
    Signature s;
    s.kind = ::maypole::Kind::kAllreduce;
    s.dims = 1;
    s.shape[0] = 100;
    for (uint32_t local : {0, 1}) {
      board().Arrive(0, local, generation, s, kNoBuffer, 0,
                     PackGpuPlace({1, 0, 256}));
    }
    board().ready_bits(0).fetch_or(1);
  }
  const Board& board() const { return *logic_.board(); }
};

TEST_F(ExecutorLogicGpuTest, AReductionIsCountedUntilItHasEnded) {
  StartWithGpu();
  ArriveOnGpu(1);
  Turn();
  EXPECT_EQ(gpu_calls_, std::vector<std::string>{"reduce 0:1"});
  EXPECT_EQ(board().header().gpu_runs.load(), 1u);
  EXPECT_EQ(board().slot(0).on_gpus.load(), Tagged(1, 1));
  EXPECT_EQ(board().OutcomeOf(0, 1), Outcome::kRunning);
  GpuRun run;
  run.operations.push_back({.slot = 0, .generation = 1});
  gpu_callbacks_.on_ended(run, Status());
  Turn();
  EXPECT_EQ(board().header().gpu_runs.load(), 0u);
  EXPECT_EQ(board().OutcomeOf(0, 1), Outcome::kCommitted);
}

TEST_F(ExecutorLogicGpuTest, AfterAnAbortNoReductionBegins) {
  StartWithGpu();
  ArriveOnGpu(1);
  board().Abort(Code::kAborted, "over");
  Turn();
  EXPECT_TRUE(gpu_calls_.empty());
  EXPECT_EQ(board().header().gpu_runs.load(), 0u);
}

TEST_F(ExecutorLogicGpuTest, ADeathAbortsTheGpusAtOnce) {
  StartWithGpu();
  ArriveOnGpu(1);
  Turn({{Kind::kProcessEnded, 1}});
  EXPECT_EQ(gpu_calls_, std::vector<std::string>{"abort"});
}

TEST_F(ExecutorLogicGpuTest, AnAbortThatIsStuckEndsTheProcess) {
  StartWithGpu();
  gpu_callbacks_.on_abort_stuck("NCCL does not return");
  EXPECT_EQ(ended_with_, "NCCL does not return");
}

TEST_F(ExecutorLogicGpuTest, TheDescriptorGoesWithItsMessageOnly) {
  for (int rank : {0, 1}) Connect(Rank(rank, 2));
  Hear(Start(2));
  auto request = session::Make<session::GpuMemoryRequest>();
  request.number = 1;
  request.bytes = 4096;
  request.sharing = static_cast<uint32_t>(session::GpuSharing::kDescriptor);
  clients_[0].descriptor = Fd(dup(STDERR_FILENO));
  clients_[0].Send(request);
  Turn({{Kind::kClient, 1}});
  clients_[1].Send(request);
  Turn({{Kind::kClient, 2}});
  EXPECT_EQ(gpu_calls_, (std::vector<std::string>{
                            "open 0.1 with its descriptor", "open 1.1"}));
}

TEST_F(ExecutorLogicGpuTest, TheGpusGoWithTheEpoch) {
  StartWithGpu();
  for (uint32_t local : {0, 1}) {
    clients_[local].Send(session::Make<session::Goodbye>());
  }
  Turn({{Kind::kClient, 1}, {Kind::kClient, 2}});
  EXPECT_EQ(logic_.board(), nullptr);
  ASSERT_FALSE(gpu_calls_.empty());
  EXPECT_EQ(gpu_calls_.back(), "gone");
}

// Rank 0 is here, rank 1 on another node.
class DrainTest : public ExecutorLogicTest {
 protected:
  // Rank 0 has left; rank 1 has not.
  void SetUp() override {
    session::Hello hello = Rank(0, 2);
    hello.local_size = 1;
    hello.cross_size = 2;
    FakeClient& rank0 = Connect(hello);
    proto::CoordinatorMessage start = Start(1);
    start.mutable_epoch_start()->set_size(2);
    proto::NodeInfo* other = start.mutable_epoch_start()->add_nodes();
    other->set_protocol_version(kProtocolVersion);
    other->set_node("n1");
    other->set_host("hostb");
    other->add_ranks(1);
    Hear(start);
    Turn();
    proto::CoordinatorMessage endpoints;
    endpoints.set_epoch(1);
    endpoints.mutable_endpoints()->add_addresses("address");
    endpoints.mutable_endpoints()->add_addresses("address");
    Hear(endpoints);
    Turn();
    ASSERT_TRUE(rank0.welcomed);
    rank0.Send(session::Make<session::Goodbye>());
    Turn({{Kind::kClient, 1}});
    ASSERT_EQ(logic_.clients(), 0u);
    ASSERT_NE(logic_.board(), nullptr);
  }
  void TheOtherLeaves() {
    proto::CoordinatorMessage left;
    left.set_epoch(1);
    left.mutable_rank_left()->set_rank(1);
    Hear(left);
  }
};

TEST_F(DrainTest, AnEpochThatDrainsOutlivesTheAgent) {
  supervised_ = false;
  Turn({{Kind::kHandOver}});
  now_ms_ += 60000;
  Turn();
  EXPECT_FALSE(logic_.done());
  TheOtherLeaves();
  EXPECT_TRUE(logic_.done());
}

// Otherwise a process that connects on another node would begin the training
// again.
TEST_F(ExecutorLogicTest, WithoutAnAgentItKeepsTheEndOfATrainingKnown) {
  FakeClient& client = Connect(Elastic(100));
  proto::CoordinatorMessage start = Start(1);
  start.mutable_epoch_start()->add_clients(1);
  Hear(start);
  Turn();
  ASSERT_TRUE(client.welcomed);
  client.Send(session::Make<session::Finished>());
  client.Send(session::Make<session::Goodbye>());
  Turn({{Kind::kClient, 1}});
  supervised_ = false;
  Turn({{Kind::kHandOver}});
  now_ms_ += kIdleMs - 1;
  Turn();
  EXPECT_FALSE(logic_.done());
  now_ms_ += 1;
  Turn();
  EXPECT_TRUE(logic_.done());
}

TEST_F(DrainTest, TheNextCoordinatorLearnsHowItEndedBeforeTheExecutorEnds) {
  supervised_ = false;
  Turn({{Kind::kHandOver}});
  callbacks_.on_replaced();
  Turn();
  to_coordinator_.clear();
  TheOtherLeaves();
  EXPECT_EQ(logic_.board(), nullptr);
  EXPECT_FALSE(logic_.done());
  proto::CoordinatorMessage recovered;
  recovered.set_epoch(1);
  recovered.mutable_recovered();
  Hear(recovered);
  ASSERT_EQ(to_coordinator_.size(), 1u);
  EXPECT_EQ(to_coordinator_[0].rank_gone().rank(), 0u);
  EXPECT_TRUE(logic_.done());
}

TEST_F(DrainTest, AfterSigtermForAMomentOnly) {
  logic_.Stop();
  EXPECT_FALSE(logic_.done());
  now_ms_ += 499;
  Turn();
  EXPECT_FALSE(logic_.done());
  now_ms_ += 1;
  Turn();
  EXPECT_TRUE(logic_.done());
}

TEST_F(DrainTest, AfterSigtermUntilTheEpochIsOver) {
  logic_.Stop();
  TheOtherLeaves();
  EXPECT_TRUE(logic_.done());
}

TEST_F(ExecutorLogicTest, TheBoardsEventFdGoesWithItsEpoch) {
  FakeClient& rank0 = Connect(Rank(0, 2));
  FakeClient& rank1 = Connect(Rank(1, 2));
  Hear(Start(2));
  EXPECT_EQ(wakes_, 1);
  rank0.Send(session::Make<session::Goodbye>());
  rank1.Send(session::Make<session::Goodbye>());
  Turn({{Kind::kClient, 1}, {Kind::kClient, 2}});
  EXPECT_EQ(logic_.board(), nullptr);
  EXPECT_EQ(wakes_, 0);
}

}  // namespace
}  // namespace maypole::worker
