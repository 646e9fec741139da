#include <barrier>

#include "client/testing/client_ranks.h"

namespace maypole {
namespace {

// The Adasum of orthogonal tensors is their sum; that of equal tensors is one
// of them. The members of a group have factors of their own.
TEST_F(ClientTest, AdasumInAllForms) {
  FakeExecutor executor("agent.sock", 3);
  Run(3, [](int rank, Client& client) {
    const auto signature = [](DType dtype, int64_t elements) {
      Signature s;
      s.kind = Kind::kAllreduce;
      s.dtype = dtype;
      s.op = Op::kAdasum;
      s.dims = 1;
      s.shape[0] = elements;
      return s;
    };
    for (int round = 0; round < 10; ++round) {
      std::vector<float> apart(7), in_place(1000, 3.f), none;
      std::vector<double> equal(5, 2.0), out(5);
      apart[rank] = static_cast<float>(rank + 1);
      std::vector<Request> group(4);
      group[0] = {"apart", signature(DType::kFloat32, 7), apart.data(),
                  apart.data()};
      group[1] = {"equal", signature(DType::kFloat64, 5), equal.data(),
                  out.data()};
      group[2] = {"in place", signature(DType::kFloat32, 1000), in_place.data(),
                  in_place.data()};
      group[3] = {"none", signature(DType::kFloat32, 0), none.data(),
                  none.data()};
      int64_t handles[4], unnamed;
      Calls calls;
      const Status s = client.SubmitGroup(group, handles);
      ASSERT_TRUE(s.ok()) << s.message();
      std::vector<float> scaled(2, 1.f);
      ASSERT_TRUE(
          client
              .Allreduce(
                  "", Floats(scaled),
                  {.op = Op::kAdasum, .prescale = 4.0, .postscale = -0.5},
                  &unnamed)
              .ok());
      ASSERT_TRUE(client.OnDone(unnamed, calls.Add()).ok());
      for (const int64_t handle : handles) {
        ASSERT_TRUE(client.Wait(handle, -1).ok());
        bool done = false;
        ASSERT_TRUE(client.Poll(handle, &done).ok());
        EXPECT_TRUE(done);
        Result result;
        ASSERT_TRUE(client.GetResult(handle, &result).ok());
        ASSERT_TRUE(client.Release(handle).ok());
      }
      EXPECT_EQ(calls.Await(1), std::vector<Code>{Code::kOk});
      ASSERT_TRUE(client.Release(unnamed).ok());
      EXPECT_EQ(apart, (std::vector<float>{1, 2, 3, 0, 0, 0, 0}));
      EXPECT_EQ(out, std::vector<double>(5, 2.0));
      EXPECT_EQ(equal, out);
      EXPECT_EQ(in_place, std::vector<float>(1000, 3.f));
      EXPECT_EQ(scaled, std::vector<float>(2, -2.f));
    }
    EXPECT_EQ(client.handles(), 0u);
    EXPECT_EQ(client.counters().completed.load(), 50);
  });
}

TEST_F(ClientTest, AdasumThatCannotBeIsAnErrorOfAllRanks) {
  FakeExecutor executor("agent.sock", 2);
  Run(2, [](int rank, Client& client) {
    const auto outcome = [&](const std::string& name, Tensor tensor,
                             ReduceOptions options) {
      options.op = Op::kAdasum;
      int64_t handle;
      if (Status s = client.Allreduce(name, tensor, options, &handle);
          !s.ok()) {
        return s;
      }
      const Status s = client.Wait(handle, -1);
      EXPECT_TRUE(client.Release(handle).ok());
      return s;
    };
    std::vector<float> x(12, 1.f);
    Status s =
        outcome("size", {DType::kFloat32, {10 + rank}, x.data(), x.data()}, {});
    EXPECT_EQ(s.code(), Code::kFailedPrecondition);
    EXPECT_NE(s.message().find("allreduce 'size': the shapes of ranks 1 and 0 "
                               "differ; this rank's are [1" +
                               std::to_string(rank) + "]"),
              std::string::npos)
        << s.message();
    s = outcome(
        "shape",
        {DType::kFloat32, {2 + rank * 2, 6 - rank * 3}, x.data(), x.data()},
        {});
    EXPECT_NE(s.message().find("the shapes of ranks 1 and 0"),
              std::string::npos)
        << s.message();
    s = outcome("factor", Floats(x), {.prescale = 1.0 + rank});
    EXPECT_EQ(s.code(), Code::kFailedPrecondition);
    EXPECT_NE(s.message().find("prescale factors"), std::string::npos)
        << s.message();
    EXPECT_TRUE(outcome("zero", Floats(x), {.prescale = 0.0}).ok());
    EXPECT_EQ(x, std::vector<float>(12, 0.f));
    std::vector<int32_t> n(3);
    s = outcome("n", {DType::kInt32, {3}, n.data(), n.data()}, {});
    EXPECT_EQ(s.code(), Code::kInvalidArgument);
    EXPECT_EQ(s.message(),
              "allreduce 'n': Adasum needs a floating point tensor, this one "
              "is int32");
    s = outcome(std::string(kMaxNameBytes, 'n'), Floats(x), {});
    EXPECT_EQ(s.code(), Code::kInvalidArgument);
    EXPECT_EQ(client.handles(), 0u);
  });
}

TEST_F(ClientTest, LeavingEndsAnAdasumAndItsCallback) {
  FakeExecutor executor("agent.sock", 2);
  std::barrier waited(2);
  Run(2, [&](int rank, Client& client) {
    std::vector<float> x(2, 1.f);
    Calls calls;
    int64_t handle;
    ASSERT_TRUE(client
                    .Allreduce("of rank " + std::to_string(rank), Floats(x),
                               {.op = Op::kAdasum}, &handle)
                    .ok());
    ASSERT_TRUE(client.OnDone(handle, calls.Add()).ok());
    EXPECT_EQ(client.Wait(handle, 1).code(), Code::kDeadlineExceeded);
    waited.arrive_and_wait();
    client.Leave();
    EXPECT_EQ(calls.threads().size(), 1u);
    EXPECT_EQ(calls.Await(1), std::vector<Code>{Code::kAborted});
    EXPECT_EQ(client.Wait(handle, -1).code(), Code::kAborted);
  });
}

}  // namespace
}  // namespace maypole
