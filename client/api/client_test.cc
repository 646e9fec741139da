#include <atomic>
#include <map>

#include "client/testing/client_ranks.h"

namespace maypole {
namespace {

TEST_F(ClientTest, ManyOperationsInAnyOrderByRank) {
  FakeExecutor executor("agent.sock", 3);
  Run(3, [](int rank, Client& client) {
    for (int round = 0; round < 20; ++round) {
      constexpr int kTensors = 12;
      std::vector<std::vector<float>> data;
      for (int i = 0; i < kTensors; ++i) {
        data.emplace_back(static_cast<size_t>(1 + i * 400),
                          static_cast<float>(rank + i + round));
      }
      std::map<int, int64_t> handles;
      for (int n = 0; n < kTensors; ++n) {
        const int i = (n * 5 + rank * 3) % kTensors;
        const Status s =
            client.Allreduce("t" + std::to_string(i), Floats(data[i]),
                             {.op = Op::kSum}, &handles[i]);
        ASSERT_TRUE(s.ok()) << s.message();
      }
      for (auto& [i, handle] : handles) {
        const Status s = client.Wait(handle, -1);
        ASSERT_TRUE(s.ok()) << s.message();
        ASSERT_TRUE(client.Release(handle).ok());
        const float want = 3.f * static_cast<float>(i + round) + 3.f;
        for (float v : data[static_cast<size_t>(i)]) ASSERT_EQ(v, want);
      }
    }
    EXPECT_EQ(client.pending(), 0);
    EXPECT_EQ(client.counters().completed.load(), 240);
  });
}

// A C caller sets only the fields that the kind needs; a broadcast has no
// factors.
TEST_F(ClientTest, FactorsCountForAllreduceOnly) {
  FakeExecutor executor("agent.sock", 2);
  Run(2, [](int rank, Client& client) {
    std::vector<float> v(10, static_cast<float>(rank + 5));
    Signature s;
    s.kind = Kind::kBroadcast;
    s.dtype = DType::kFloat32;
    s.dims = 1;
    s.shape[0] = 10;
    s.root = 1;
    s.prescale = s.postscale = 0.0;
    int64_t handle;
    ASSERT_TRUE(client.Submit("b", s, v.data(), v.data(), &handle).ok());
    ASSERT_TRUE(client.Wait(handle, -1).ok());
    EXPECT_EQ(v, std::vector<float>(10, 6.f));
  });
}

TEST_F(ClientTest, UnnamedOperationsMayOutnumberTheirSlots) {
  FakeExecutor executor("agent.sock", 2);
  Run(2, [](int rank, Client& client) {
    std::vector<std::vector<float>> data(
        300, std::vector<float>(1, static_cast<float>(rank)));
    std::vector<int64_t> handles(data.size());
    for (size_t i = 0; i < data.size(); ++i) {
      data[i][0] += static_cast<float>(i);
      const Status s =
          client.Allreduce("", Floats(data[i]), {.op = Op::kSum}, &handles[i]);
      ASSERT_TRUE(s.ok()) << s.message();
    }
    for (size_t i = 0; i < data.size(); ++i) {
      const Status s = client.Wait(handles[i], -1);
      ASSERT_TRUE(s.ok()) << s.message();
      EXPECT_EQ(data[i][0], 1.f + 2.f * static_cast<float>(i));
    }
  });
}

TEST_F(ClientTest, SecondSubmissionOfAPendingNameIsRefused) {
  FakeExecutor executor("agent.sock", 2);
  std::atomic<bool> tried{false};
  Run(2, [&](int rank, Client& client) {
    std::vector<float> v(1, 1.f), w(1, 1.f);
    int64_t a, b;
    if (rank == 1) {
      while (!tried.load()) std::this_thread::yield();
    }
    ASSERT_TRUE(client.Allreduce("x", Floats(v), {.op = Op::kSum}, &a).ok());
    if (rank == 0) {
      const Status s = client.Allreduce("x", Floats(w), {.op = Op::kSum}, &b);
      EXPECT_EQ(s.code(), Code::kAlreadyExists);
      EXPECT_NE(s.message().find("allreduce 'x'"), std::string::npos);
      // An operation of another kind with the same name is a different one.
      EXPECT_TRUE(client.Broadcast("x", Floats(w), 0, &b).ok());
      tried.store(true);
    } else {
      ASSERT_TRUE(client.Broadcast("x", Floats(w), 0, &b).ok());
    }
    EXPECT_TRUE(client.Wait(a, -1).ok());
    EXPECT_TRUE(client.Wait(b, -1).ok());
    EXPECT_EQ(v[0], 2.f);
  });
}

TEST_F(ClientTest, ASlotOfAnotherNameIsRefused) {
  FakeExecutor executor("agent.sock", 1);
  executor.MixNames();
  Run(1, [](int, Client& client) {
    std::vector<float> v(1, 1.f);
    int64_t handle;
    ASSERT_TRUE(client.Allreduce("x", Floats(v), {}, &handle).ok());
    const Status s = client.Wait(handle, 20000);
    EXPECT_EQ(s.code(), Code::kInternal);
    EXPECT_EQ(s.message(),
              "allreduce 'x': the executor allotted slot 0, which belongs to "
              "another operation");
  });
}

TEST(LocalClientTest, AJobOfOneRankNeedsNoAgent) {
  std::unique_ptr<Client> client;
  ASSERT_TRUE(Client::Join(RankOptions{}, &client).ok());
  std::vector<float> v = {1, 2}, out(2);
  int64_t handle;
  Tensor t{DType::kFloat32, {2}, v.data(), out.data()};
  ASSERT_TRUE(
      client->Allreduce("x", t, {.op = Op::kSum, .postscale = 3}, &handle)
          .ok());
  EXPECT_TRUE(client->Wait(handle, -1).ok());
  EXPECT_EQ(out, (std::vector<float>{3, 6}));
  Tensor g{DType::kFloat32, {2}, v.data(), nullptr};
  ASSERT_TRUE(client->Allgather("g", g, &handle).ok());
  Result r;
  ASSERT_TRUE(client->GetResult(handle, &r).ok());
  EXPECT_EQ(r.first_dim, 2);
  EXPECT_EQ(static_cast<float*>(r.data)[1], 2.f);
  EXPECT_EQ(client->Broadcast("b", t, 1, &handle).code(),
            Code::kInvalidArgument);
}

TEST(LocalClientTest, ARankAloneSharesNoGpuMemory) {
  std::unique_ptr<Client> client;
  ASSERT_TRUE(Client::Join(RankOptions{}, &client).ok());
  void* memory = nullptr;
  const Status s = client->AllocateOnGpu(1, 0, &memory);
  EXPECT_EQ(s.code(), Code::kResourceExhausted);
  EXPECT_EQ(s.message(),
            "this rank is alone on its node, and GPUs of other nodes cannot be "
            "used together with its own, so that no memory of GPUs is shared");
  EXPECT_EQ(memory, nullptr);
  EXPECT_TRUE(Client::FreeOnGpu(nullptr, {}).ok());
}

TEST(LocalClientTest, SplitsAreForAlltoallOnly) {
  std::unique_ptr<Client> client;
  ASSERT_TRUE(Client::Join(RankOptions(), &client).ok());
  std::vector<float> v = {1, 2};
  Request request{.name = "x", .input = v.data(), .output = v.data()};
  request.signature.kind = Kind::kAllreduce;
  request.signature.dtype = DType::kFloat32;
  request.signature.dims = 1;
  request.signature.shape[0] = 2;
  request.splits = {2};
  int64_t handle;
  const Status s = client->Submit(request, &handle);
  EXPECT_EQ(s.code(), Code::kInvalidArgument);
  EXPECT_EQ(s.message(), "allreduce 'x': splits are for alltoall only");
  request.signature.kind = Kind::kAlltoall;
  ASSERT_TRUE(client->Submit(request, &handle).ok());
  Result result;
  ASSERT_TRUE(client->GetResult(handle, &result).ok());
  EXPECT_EQ(result.first_dim, 2);
  EXPECT_EQ(result.received_splits, std::vector<int64_t>{2});
  EXPECT_TRUE(client->Release(handle).ok());
}

}  // namespace
}  // namespace maypole
