#include "tests/bench/cpp/runner.h"

#include <functional>

#include "gtest/gtest.h"

namespace maypole::bench {
namespace {

// Rank 1 of 3, alone: adds what the others would have. A test may spoil it.
class FakeLibrary : public Library {
 public:
  std::function<void(int round, const std::vector<Buffer>&)> spoil;
  Status barrier_status;
  Status allreduce_status;
  int rounds = 0;

  int rank() const override { return 1; }
  int size() const override { return 3; }
  int nodes() const override { return 1; }

  Status Barrier() override { return barrier_status; }

  Status Allreduce(const std::vector<Buffer>& buffers) override {
    ++rounds;
    for (size_t t = 0; t < buffers.size(); ++t) {
      std::vector<float> other(buffers[t].data.size());
      for (int rank : {0, 2}) {
        pattern_.Fill(rank, rounds, static_cast<int64_t>(t), other);
        for (size_t i = 0; i < other.size(); ++i) {
          buffers[t].data[i] += other[i];
        }
      }
    }
    if (spoil) spoil(rounds - 1, buffers);
    return allreduce_status;
  }

  // The others were slow in every round: 1e9, 1e9 + 1, ...
  Status Gather(const std::vector<double>& mine,
                std::vector<double>* all) override {
    *all = std::vector<double>(mine.size(), 0.0);
    all->insert(all->end(), mine.begin(), mine.end());
    for (size_t i = 0; i < mine.size(); ++i) {
      all->push_back(1e9 + static_cast<double>(i));
    }
    return Status();
  }

 private:
  const Pattern pattern_{3};
};

Case TwoTensors() {
  Case c;
  c.label = "two";
  c.tensors = {{"bench.a", {10, 10}}, {"bench.b", {70000}}};
  c.warmup = 2;
  c.rounds = 3;
  return c;
}

TEST(Runner, GivesTheSlowestRanksTimesOfMeasuredRounds) {
  FakeLibrary library;
  Runner runner(&library);
  Row row;
  ASSERT_TRUE(runner.Run(TwoTensors(), &row).ok());
  EXPECT_EQ(library.rounds, 5);
  EXPECT_EQ(row.label, "two");
  EXPECT_EQ(row.bytes, 280400);
  EXPECT_EQ(row.tensors, 2);
  EXPECT_EQ(row.times, (std::vector<double>{1e9, 1e9 + 1, 1e9 + 2}));
}

TEST(Runner, RoundsOfALaterCaseHaveInputsOfTheirOwn) {
  FakeLibrary library;
  std::vector<float> first;
  library.spoil = [&](int, const std::vector<Buffer>& buffers) {
    first.push_back(buffers[0].data[0]);
  };
  Runner runner(&library);
  Row row;
  ASSERT_TRUE(runner.Run(TwoTensors(), &row).ok());
  ASSERT_TRUE(runner.Run(TwoTensors(), &row).ok());
  ASSERT_EQ(first.size(), 10u);
  EXPECT_NE(std::vector<float>(first.begin(), first.begin() + 5),
            std::vector<float>(first.begin() + 5, first.end()));
}

TEST(Runner, SaysWhichElementIsWrong) {
  FakeLibrary library;
  float right = 0;
  library.spoil = [&](int round, const std::vector<Buffer>& buffers) {
    if (round != 3) return;
    right = buffers[1].data[65530];
    buffers[1].data[65530] = 0.5f;
  };
  Runner runner(&library);
  Row row;
  const Status s = runner.Run(TwoTensors(), &row);
  EXPECT_EQ(s.code(), Code::kDataLoss);
  EXPECT_EQ(s.message(),
            "wrong result: case two, tensor bench.b, round 3 (of "
            "2 + 3), index 65530 of 70000: got 0.5, expected " +
                std::to_string(static_cast<int>(right)));
}

TEST(Runner, ChecksWarmUpRoundsToo) {
  FakeLibrary library;
  library.spoil = [](int, const std::vector<Buffer>& buffers) {
    buffers[0].data[0] += 1;
  };
  Runner runner(&library);
  Row row;
  EXPECT_EQ(runner.Run(TwoTensors(), &row).code(), Code::kDataLoss);
  EXPECT_EQ(library.rounds, 1);
}

TEST(Runner, PassesErrorsOn) {
  Row row;
  FakeLibrary library;
  library.allreduce_status = Status(Code::kAborted, "rank 2 was lost");
  EXPECT_EQ(Runner(&library).Run(TwoTensors(), &row).message(),
            "rank 2 was lost");
  library.barrier_status = Status(Code::kAborted, "rank 0 was lost");
  EXPECT_EQ(Runner(&library).Run(TwoTensors(), &row).message(),
            "rank 0 was lost");
}

}  // namespace
}  // namespace maypole::bench
