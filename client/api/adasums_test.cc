#include "client/api/adasums.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "client/session/local_communicator.h"

namespace maypole {
namespace {

struct DirectQueue : CompletionQueue {
  void Push(std::unique_ptr<Completion> completion) override {
    completion->call(*completion->operation);
  }
};

struct OnGpu : StagedTensor {
  std::byte* GatherInto(uint64_t) override { return nullptr; }
  Status BringToHost(Operation*, bool*) override { return Status(); }
  void ResultOnGpu(uint64_t) override {}
};

struct AdasumsTest : ::testing::Test {
  std::shared_ptr<Operation> Make(const std::string& name, DType dtype) {
    auto op = std::make_shared<Operation>();
    op->handle = ++last_handle;
    op->name = name;
    op->set = communicator->FindSet(0);
    op->signature.kind = Kind::kAllreduce;
    op->signature.dtype = dtype;
    op->signature.op = Op::kAdasum;
    op->signature.dims = 1;
    op->signature.shape[0] = 2;
    op->output = reinterpret_cast<std::byte*>(tensor);
    op->input = op->output;
    return op;
  }
  Status Start(const std::vector<std::shared_ptr<Operation>>& operations) {
    return adasums.Start(operations, std::make_shared<DirectQueue>(),
                         [this](const auto& op, auto on_input) {
                           watched.push_back(op);
                           input_done = on_input;
                         });
  }

  double tensor[2] = {1, 1};
  int64_t last_handle = 0;
  const std::shared_ptr<Communicator> communicator =
      std::make_shared<LocalCommunicator>();
  Adasums adasums{communicator, 0};
  std::vector<std::shared_ptr<Operation>> watched;
  Staging::OnInput input_done;
};

TEST_F(AdasumsTest, OneRunForThoseThatTravelTogether) {
  const auto a = Make("a", DType::kFloat32), b = Make("b", DType::kFloat64),
             c = Make("c", DType::kFloat32), d = Make("d", DType::kFloat32);
  d->signature.prescale = 2;
  ASSERT_TRUE(Start({a, b, c, d}).ok());
  const auto run = adasums.Find(a->handle);
  ASSERT_NE(run, nullptr);
  EXPECT_EQ(adasums.Find(c->handle), run);
  EXPECT_NE(adasums.Find(b->handle), run);
  EXPECT_NE(adasums.Find(d->handle), run);
  for (const auto& op : {a, b, c, d}) EXPECT_TRUE(op->done) << op->name;

  adasums.Release(a->handle);
  EXPECT_EQ(adasums.Find(a->handle), nullptr);
  EXPECT_EQ(adasums.Find(c->handle), run);
  adasums.Release(a->handle);  // nothing
}

TEST_F(AdasumsTest, AllOrNone) {
  const auto good = Make("good", DType::kFloat32);
  const auto bad = Make(std::string(kMaxNameBytes, 'n'), DType::kFloat64);
  const Status s = Start({good, bad});
  EXPECT_EQ(s.code(), Code::kInvalidArgument);
  EXPECT_EQ(s.message().find("allreduce 'nnn"), 0u) << s.message();
  EXPECT_FALSE(good->done);
  EXPECT_EQ(adasums.Find(good->handle), nullptr);
  EXPECT_EQ(adasums.Find(bad->handle), nullptr);
}

TEST_F(AdasumsTest, UnnamedOnesAreNumbered) {
  const auto a = Make("", DType::kFloat32), b = Make("", DType::kFloat32);
  ASSERT_TRUE(Start({a}).ok());
  ASSERT_TRUE(Start({b}).ok());
  EXPECT_EQ(a->name, "unnamed.0");
  EXPECT_EQ(b->name, "unnamed.1");
}

TEST_F(AdasumsTest, AStagedInputIsAwaited) {
  const auto a = Make("a", DType::kFloat64), b = Make("b", DType::kFloat64);
  a->staged = std::make_shared<OnGpu>();
  a->input_ready = false;
  ASSERT_TRUE(Start({a, b}).ok());
  EXPECT_EQ(watched, std::vector{a});
  EXPECT_FALSE(a->done);
  input_done(Status());
  EXPECT_TRUE(a->done);
  EXPECT_TRUE(b->done);
}

}  // namespace
}  // namespace maypole
