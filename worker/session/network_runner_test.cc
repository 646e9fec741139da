// The runner step by step over a real board, with a fake backend; the test
// plays the ranks.
#include "worker/session/network_runner.h"

#include <gtest/gtest.h>

#include <thread>

#include "worker/backend/fake_backend.h"

namespace maypole::worker {
namespace {

constexpr uint32_t kChunk = 4096;

class NetworkRunnerTest : public testing::Test {
 protected:
  void SetUp() override {
    BoardConfig config;
    config.size = 4;
    config.local_size = 2;
    config.nodes = 2;
    config.slots = 64;
    config.runs = 4;
    config.chunk_bytes = kChunk;
    config.ring_depth = 3;
    const Status s = Board::Create(config, &board_);
    ASSERT_TRUE(s.ok()) << s.message();
    NetworkRunner::Callbacks callbacks;
    callbacks.on_done = [this](const RunSpec& r) { done_.push_back(r.record); };
    callbacks.on_free = [this](uint32_t record) { freed_.push_back(record); };
    runner_ =
        std::make_unique<NetworkRunner>(board_.get(), &backend_, callbacks);
  }

  RunSpec Spec(uint32_t record, uint32_t generation, uint64_t bytes,
               Kind kind = Kind::kAllreduce) {
    RunSpec spec;
    spec.record = record;
    spec.generation = generation;
    spec.bytes = bytes;
    spec.kind = kind;
    spec.dtype = DType::kFloat32;
    return spec;
  }

  void StepAll() {
    for (;;) {
      const auto moved = runner_->Step();
      ASSERT_TRUE(moved.ok()) << moved.status();
      if (!*moved) return;
    }
  }

  RunHeader& Run(uint32_t record) {
    return board_->run(board_->NegotiatedRef(record));
  }
  uint32_t Granted(uint32_t record, uint32_t g) {
    return CountAt(Run(record).granted.load(), g);
  }
  uint32_t Done(uint32_t record, uint32_t g) {
    return CountAt(Run(record).done.load(), g);
  }
  void Publish(std::atomic<uint64_t> Progress::*word, uint32_t record,
               uint32_t g, uint32_t count) {
    for (uint32_t i = 0; i < 2; ++i) Publish(word, record, i, g, count);
  }
  void Publish(std::atomic<uint64_t> Progress::*word, uint32_t record,
               uint32_t rank, uint32_t g, uint32_t count) {
    (board_->progress(board_->NegotiatedRef(record), rank).*word)
        .store(Tagged(g, count));
  }

  std::unique_ptr<Board> board_;
  FakeBackend backend_;
  std::vector<uint32_t> done_;
  std::vector<uint32_t> freed_;
  std::unique_ptr<NetworkRunner> runner_;
};

TEST_F(NetworkRunnerTest, ChunkWaitsForAllLocalRanks) {
  RunSpec spec = Spec(0, 1, 2 * kChunk + 100);
  spec.finish = {.divisor = 4, .scale = 0.5};
  runner_->Add(spec);
  StepAll();
  EXPECT_EQ(Granted(0, 1), 3u);
  EXPECT_EQ(Run(0).node_base.load(), 0u);
  Publish(&Progress::reduced, 0, 0, 1, 3);
  StepAll();
  EXPECT_TRUE(backend_.calls.empty());
  Publish(&Progress::reduced, 0, 1, 1, 1);
  StepAll();
  ASSERT_EQ(backend_.calls.size(), 1u);
  EXPECT_EQ(backend_.calls[0].data, board_->node_ring(0));
  EXPECT_EQ(backend_.calls[0].bytes, kChunk);
  EXPECT_EQ(backend_.calls[0].finish.divisor, 4);
  EXPECT_EQ(backend_.calls[0].finish.scale, 0.5);
  EXPECT_EQ(Done(0, 1), 1u);
  Publish(&Progress::reduced, 0, 1, 1, 3);
  StepAll();
  ASSERT_EQ(backend_.calls.size(), 3u);
  EXPECT_EQ(backend_.calls[2].bytes, 100u);
  EXPECT_EQ(backend_.calls[2].data, board_->node_ring(2));
  EXPECT_EQ(done_, (std::vector<uint32_t>{0}));
  EXPECT_TRUE(freed_.empty());
}

TEST_F(NetworkRunnerTest, PlacesAreGrantedOverRunsAndOnlyWhenConsumed) {
  runner_->Add(Spec(0, 1, 2 * kChunk));
  runner_->Add(Spec(1, 1, 4 * kChunk));
  StepAll();
  EXPECT_EQ(Granted(0, 1), 2u);
  EXPECT_EQ(Granted(1, 1), 1u);  // three places in all
  EXPECT_EQ(Run(1).node_base.load(), 2u);
  Publish(&Progress::reduced, 0, 1, 2);
  Publish(&Progress::reduced, 1, 1, 1);
  StepAll();
  EXPECT_EQ(backend_.calls.size(), 3u);
  EXPECT_EQ(Granted(1, 1), 1u);
  Publish(&Progress::consumed, 0, 0, 1, 2);
  StepAll();
  EXPECT_EQ(Granted(1, 1), 1u);  // the other rank still reads
  Publish(&Progress::consumed, 0, 1, 1, 1);
  StepAll();
  EXPECT_EQ(Granted(1, 1), 2u);
  Publish(&Progress::consumed, 0, 1, 1, UINT32_MAX);
  StepAll();
  EXPECT_EQ(Granted(1, 1), 3u);
  EXPECT_TRUE(freed_.empty());
  Publish(&Progress::consumed, 0, 0, 1, UINT32_MAX);
  StepAll();
  EXPECT_EQ(freed_, (std::vector<uint32_t>{0}));
}

TEST_F(NetworkRunnerTest, RecordIsUsedAgainWithItsNextGeneration) {
  for (uint32_t g = 1; g <= 5; ++g) {
    runner_->Add(Spec(2, g, 2 * kChunk));
    StepAll();
    EXPECT_EQ(Granted(2, g), 2u) << g;
    EXPECT_EQ(Run(2).node_base.load(), (g - 1) * 2 % 3);
    Publish(&Progress::reduced, 2, g, 2);
    StepAll();
    EXPECT_EQ(Done(2, g), 2u);
    Publish(&Progress::consumed, 2, g, UINT32_MAX);
    StepAll();
    EXPECT_EQ(freed_.size(), g);
  }
  EXPECT_EQ(backend_.calls.size(), 10u);
}

TEST_F(NetworkRunnerTest, RunWithoutBytesNeedsNothing) {
  runner_->Add(Spec(0, 1, 0, Kind::kBarrier));
  runner_->Add(Spec(1, 1, kChunk));
  StepAll();
  EXPECT_EQ(done_, (std::vector<uint32_t>{0}));
  EXPECT_EQ(Granted(1, 1), 1u);
  Publish(&Progress::consumed, 0, 1, UINT32_MAX);
  StepAll();
  EXPECT_EQ(freed_, (std::vector<uint32_t>{0}));
}

TEST_F(NetworkRunnerTest, GatheringSendsTheSegmentsOfEachNode) {
  RunSpec spec = Spec(0, 1, kChunk + 1000, Kind::kAllgather);
  spec.blocks = {
      {0, 0, 100}, {1, 100, kChunk + 500}, {0, kChunk + 500, kChunk + 1000}};
  runner_->Add(spec);
  Publish(&Progress::reduced, 0, 1, 2);  // not what counts here
  StepAll();
  EXPECT_TRUE(backend_.calls.empty());
  Publish(&Progress::staged, 0, 1, 2);
  StepAll();
  ASSERT_EQ(backend_.calls.size(), 2u);
  EXPECT_EQ(backend_.calls[0].segments,
            (std::vector<Segment>{{0, 0, 100}, {1, 100, kChunk - 100}}));
  EXPECT_EQ(backend_.calls[1].segments,
            (std::vector<Segment>{{1, 0, 500}, {0, 500, 500}}));
}

TEST_F(NetworkRunnerTest, WildProgressOfARankHarmsNobody) {
  runner_->Add(Spec(0, 1, 5 * kChunk));
  Publish(&Progress::reduced, 0, 1, UINT32_MAX);
  Publish(&Progress::consumed, 0, 1, UINT32_MAX);
  StepAll();
  EXPECT_EQ(backend_.calls.size(), 5u);
  EXPECT_EQ(Granted(0, 1), 5u);
  EXPECT_EQ(freed_.size(), 1u);
}

TEST_F(NetworkRunnerTest, ErrorOfTheBackendIsFinal) {
  backend_.result = absl::UnavailableError("node n1 has gone");
  runner_->Add(Spec(0, 1, kChunk));
  Publish(&Progress::reduced, 0, 1, 1);
  const absl::Status s = runner_->Run();
  EXPECT_EQ(s.message(), "node n1 has gone");
  EXPECT_EQ(Done(0, 1), 0u);
}

TEST_F(NetworkRunnerTest, SleepsUntilWokenAndEndsWithTheBoard) {
  absl::Status result = absl::UnknownError("still running");
  std::thread network([&] { result = runner_->Run(); });
  runner_->Add(Spec(0, 1, kChunk));
  while (Granted(0, 1) == 0) std::this_thread::yield();
  Publish(&Progress::reduced, 0, 1, 1);
  board_->WakeNetwork();
  while (Done(0, 1) == 0) std::this_thread::yield();
  board_->Abort(Code::kAborted, "over");
  network.join();
  EXPECT_TRUE(result.ok());
}

TEST(SegmentsOfTest, NeighboursOfOneNodeAreOneSegment) {
  EXPECT_EQ(SegmentsOf({{0, 0, 10}, {0, 10, 20}, {1, 20, 30}}, {5, 25}),
            (std::vector<Segment>{{0, 0, 15}, {1, 15, 5}}));
  EXPECT_TRUE(SegmentsOf({{0, 0, 10}}, {10, 20}).empty());
}

}  // namespace
}  // namespace maypole::worker
