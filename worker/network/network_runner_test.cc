// NetworkRunner step by step on a real board, with a fake backend; the test
// acts as the ranks.
#include "worker/network/network_runner.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "worker/backend/testing/fake_backend.h"

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
    spec.members = 3;
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
  EXPECT_EQ(backend_.calls[0].chunk.data(), board_->node_ring(0));
  EXPECT_EQ(backend_.calls[0].chunk.size(), kChunk);
  EXPECT_TRUE(backend_.calls[0].reduces);
  EXPECT_EQ(backend_.calls[0].dtype, DType::kFloat32);
  EXPECT_EQ(backend_.calls[0].finish.divisor, 4);
  EXPECT_EQ(backend_.calls[0].finish.scale, 0.5);
  EXPECT_EQ(Done(0, 1), 1u);
  Publish(&Progress::reduced, 0, 1, 1, 3);
  StepAll();
  ASSERT_EQ(backend_.calls.size(), 3u);
  EXPECT_EQ(backend_.calls[2].chunk.size(), 100u);
  EXPECT_EQ(backend_.calls[2].chunk.data(), board_->node_ring(2));
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
  spec.blocks = {{0, kAllNodes, 0, 100},
                 {1, kAllNodes, 100, kChunk + 500},
                 {0, kAllNodes, kChunk + 500, kChunk + 1000}};
  runner_->Add(spec);
  Publish(&Progress::reduced, 0, 1, 2);  // not what counts here
  StepAll();
  EXPECT_TRUE(backend_.calls.empty());
  Publish(&Progress::staged, 0, 1, 2);
  StepAll();
  ASSERT_EQ(backend_.calls.size(), 2u);
  EXPECT_FALSE(backend_.calls[0].reduces);
  EXPECT_EQ(backend_.calls[0].segments,
            (std::vector<Segment>{{0, kEveryNode, 0, 100},
                                  {1, kEveryNode, 100, kChunk - 100}}));
  EXPECT_EQ(backend_.calls[1].segments,
            (std::vector<Segment>{{1, kEveryNode, 0, 500},
                                  {0, kEveryNode, 500, 500}}));
}

TEST_F(NetworkRunnerTest, OnlyTheMembersCount) {
  RunSpec spec = Spec(0, 1, 2 * kChunk);
  spec.members = 2;
  spec.nodes = {0, 1};
  spec.op = Op::kMax;
  runner_->Add(spec);
  Publish(&Progress::reduced, 0, 0, 1, 2);  // is not in it
  StepAll();
  EXPECT_TRUE(backend_.calls.empty());
  Publish(&Progress::reduced, 0, 1, 1, 2);
  StepAll();
  ASSERT_EQ(backend_.calls.size(), 2u);
  EXPECT_EQ(backend_.calls[0].nodes, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(backend_.calls[0].op, Op::kMax);
  Publish(&Progress::consumed, 0, 1, 1, UINT32_MAX);
  StepAll();
  EXPECT_EQ(freed_, (std::vector<uint32_t>{0}));
}

TEST_F(NetworkRunnerTest, AScatterSaysWhoNeedsWhat) {
  RunSpec spec = Spec(0, 1, kChunk + 100, Kind::kReducescatter);
  spec.blocks = {{0, 0, 0, 1000}, {0, 1, 1000, kChunk + 100}};
  runner_->Add(spec);
  Publish(&Progress::staged, 0, 1, 2);  // not what counts here
  StepAll();
  EXPECT_TRUE(backend_.calls.empty());
  Publish(&Progress::reduced, 0, 1, 2);
  StepAll();
  ASSERT_EQ(backend_.calls.size(), 2u);
  EXPECT_TRUE(backend_.calls[0].reduces);
  EXPECT_TRUE(backend_.calls[0].scatters);
  EXPECT_EQ(
      backend_.calls[0].segments,
      (std::vector<Segment>{{0, 0, 0, 1000}, {0, 1, 1000, kChunk - 1000}}));
  EXPECT_EQ(backend_.calls[1].segments, (std::vector<Segment>{{0, 1, 0, 100}}));
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

TEST_F(NetworkRunnerTest, SeveralChunksAreOnTheirWayAndDoneGrowsAsTheyEnd) {
  backend_.holds = true;
  runner_->Add(Spec(0, 1, 2 * kChunk));
  runner_->Add(Spec(1, 1, 3 * kChunk));
  StepAll();
  Publish(&Progress::reduced, 1, 1, 1);  // its turn comes after run 0
  StepAll();
  EXPECT_TRUE(backend_.calls.empty());
  Publish(&Progress::reduced, 0, 1, 2);
  StepAll();
  ASSERT_EQ(backend_.calls.size(), 3u);  // all places, over both runs
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(backend_.calls[i].chunk.data(), board_->node_ring(i));
  }
  EXPECT_EQ(Done(0, 1), 0u);
  backend_.End(absl::OkStatus());
  EXPECT_EQ(Done(0, 1), 1u);
  EXPECT_TRUE(done_.empty());
  backend_.End(absl::OkStatus());
  backend_.End(absl::OkStatus());
  EXPECT_EQ(Done(0, 1), 2u);
  EXPECT_EQ(Done(1, 1), 1u);
  EXPECT_EQ(done_, (std::vector<uint32_t>{0}));
}

TEST_F(NetworkRunnerTest, NoPlaceIsUsedAgainWhileItsChunkIsOnItsWay) {
  backend_.holds = true;
  runner_->Add(Spec(0, 1, 5 * kChunk));
  // Ranks that claim to have consumed everything long before.
  Publish(&Progress::reduced, 0, 1, UINT32_MAX);
  Publish(&Progress::consumed, 0, 1, UINT32_MAX);
  StepAll();
  EXPECT_EQ(backend_.calls.size(), 3u);
  EXPECT_EQ(Granted(0, 1), 3u);
  EXPECT_TRUE(freed_.empty());
  backend_.End(absl::OkStatus());
  StepAll();
  EXPECT_EQ(backend_.calls.size(), 4u);
  EXPECT_EQ(backend_.calls[3].chunk.data(), board_->node_ring(0));
  EXPECT_EQ(Granted(0, 1), 4u);
  for (int i = 0; i < 4; ++i) {
    backend_.End(absl::OkStatus());
    StepAll();
  }
  EXPECT_EQ(Done(0, 1), 5u);
  EXPECT_EQ(freed_, (std::vector<uint32_t>{0}));
}

TEST_F(NetworkRunnerTest, AfterAnErrorNothingIsDoneAnyMore) {
  backend_.holds = true;
  runner_->Add(Spec(0, 1, 3 * kChunk));
  Publish(&Progress::reduced, 0, 1, 3);
  StepAll();
  backend_.End(absl::OkStatus());
  backend_.End(absl::UnavailableError("node n1 has gone"));
  backend_.End(absl::OkStatus());
  EXPECT_EQ(Done(0, 1), 1u);
  EXPECT_EQ(runner_->Step().status().message(), "node n1 has gone");
}

TEST_F(NetworkRunnerTest, AnErrorWhileItSleepsEndsIt) {
  backend_.holds = true;
  absl::Status result;
  runner_->Add(Spec(0, 1, kChunk));
  Publish(&Progress::reduced, 0, 1, 1);
  StepAll();
  std::thread network([&] { result = runner_->Run(); });
  while (board_->header().network_sleeping == 0) std::this_thread::yield();
  backend_.End(absl::UnavailableError("node n1 has gone"));
  network.join();
  EXPECT_EQ(result.message(), "node n1 has gone");
}

// Ranks, network thread and a backend that ends chunks at random times: every
// chunk is exchanged once, in its place, after its ranks and before `done`.
TEST_F(NetworkRunnerTest, ManyRunsWithRanksAndBackendAsThreads) {
  constexpr uint32_t kRuns = 200;
  backend_.holds = true;
  std::atomic<uint32_t> started{0};
  std::atomic<bool> over{false};
  std::atomic<uint32_t> freed{0};
  NetworkRunner::Callbacks callbacks;
  callbacks.on_free = [&](uint32_t) { ++freed; };
  runner_ = std::make_unique<NetworkRunner>(board_.get(), &backend_, callbacks);
  const auto chunks = [](uint32_t run) { return 1 + run * 7 % 11; };
  std::thread network([&] {
    while (!over) {
      const auto moved = runner_->Step();
      ASSERT_TRUE(moved.ok());
      started = static_cast<uint32_t>(backend_.calls.size());
    }
  });
  std::thread ender([&] {
    for (uint32_t ended = 0; !over;) {
      if (ended == started) {
        std::this_thread::yield();
        continue;
      }
      backend_.End(absl::OkStatus());
      ++ended;
    }
  });
  const auto rank = [&](uint32_t me) {
    for (uint32_t run = 0; run < kRuns; ++run) {
      const uint32_t record = run % 4;
      const uint32_t g = run / 4 + 1;
      for (uint32_t c = 0; c < chunks(run); ++c) {
        while (Granted(record, g) <= c) std::this_thread::yield();
        Publish(&Progress::reduced, record, me, g, c + 1);
        while (Done(record, g) <= c) std::this_thread::yield();
        Publish(&Progress::consumed, record, me, g, c + 1);
      }
      Publish(&Progress::consumed, record, me, g, UINT32_MAX);
    }
  };
  std::thread a(rank, 0), b(rank, 1);
  uint32_t total = 0;
  for (uint32_t run = 0; run < kRuns; ++run) {
    while (run >= 4 && freed < run - 3) std::this_thread::yield();
    runner_->Add(Spec(run % 4, run / 4 + 1, chunks(run) * kChunk));
    total += chunks(run);
  }
  a.join();
  b.join();
  while (freed < kRuns) std::this_thread::yield();
  over = true;
  network.join();
  ender.join();
  ASSERT_EQ(backend_.calls.size(), total);
  for (uint32_t i = 0; i < total; ++i) {
    ASSERT_EQ(backend_.calls[i].chunk.data(), board_->node_ring(i % 3));
  }
}

TEST_F(NetworkRunnerTest, ErrorOfTheBackendIsFinal) {
  backend_.result = absl::UnavailableError("node n1 has gone");
  runner_->Add(Spec(0, 1, kChunk));
  Publish(&Progress::reduced, 0, 1, 1);
  const absl::Status s = runner_->Run();
  EXPECT_EQ(s.message(), "node n1 has gone");
  EXPECT_EQ(Done(0, 1), 0u);
}

// The other node may still wait for what was sent here.
TEST_F(NetworkRunnerTest, ABrokenConnectionIsAnErrorWithoutAChunkInFlight) {
  runner_->Add(Spec(0, 1, kChunk));
  Publish(&Progress::reduced, 0, 1, 1);
  StepAll();
  ASSERT_EQ(Done(0, 1), 1u);
  backend_.broken = absl::UnavailableError("node n1 has gone");
  EXPECT_EQ(runner_->Step().status().message(), "node n1 has gone");
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
  EXPECT_EQ(
      SegmentsOf({{0, 2, 0, 10}, {0, 2, 10, 20}, {1, 2, 20, 30}}, {5, 25}),
      (std::vector<Segment>{{0, 2, 0, 15}, {1, 2, 15, 5}}));
  EXPECT_EQ(SegmentsOf({{0, 2, 0, 10}, {0, 3, 10, 20}}, {0, 25}),
            (std::vector<Segment>{{0, 2, 0, 10}, {0, 3, 10, 10}}));
  EXPECT_TRUE(SegmentsOf({{0, 2, 0, 10}}, {10, 20}).empty());
}

}  // namespace
}  // namespace maypole::worker
