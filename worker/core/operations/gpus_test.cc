// GPU memory that ranks share with the executor, and the reductions there.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "common/board/gpu_place.h"
#include "worker/core/testing/core_testing.h"

namespace maypole::worker {
namespace {

constexpr uint64_t kMegabyte = 1 << 20;

class GpusTest : public ExecutorCoreTest {
 protected:
  static session::GpuMemoryRequest Request(
      uint32_t number, uint64_t bytes = kMegabyte,
      session::GpuSharing sharing = session::GpuSharing::kDescriptor) {
    auto request = session::Make<session::GpuMemoryRequest>();
    request.number = number;
    request.sharing = static_cast<uint32_t>(sharing);
    request.bytes = bytes;
    request.proof = 7;
    return request;
  }
  // Client 1 + local asks for its memory; it becomes open.
  void Open(uint32_t local, uint32_t number, uint32_t gpu = 0) {
    core_.OnGpuMemoryRequest(1 + local, Request(number));
    core_.OnGpuMemoryOpened({local, number}, OpenedGpuMemory{.gpu = gpu});
    Drop();
  }
  ReadySlot OnGpu(uint32_t slot, uint32_t generation, int64_t elements,
                  GpuPlace place0, GpuPlace place1) {
    ReadySlot ready =
        Ready(slot, generation, Kind::kAllreduce, elements, elements);
    ready.gpu_places = {PackGpuPlace(place0), PackGpuPlace(place1)};
    return ready;
  }
  void Ended(uint32_t slot, uint32_t generation, const absl::Status& status) {
    GpuRun run;
    run.operations.push_back({.slot = slot, .generation = generation});
    core_.OnGpuRunEnded(run, status);
  }
  // The text of the abort that has happened.
  std::string AbortText() {
    const auto aborts = Take<AbortBoard>();
    return aborts.size() == 1 ? aborts[0].text : "";
  }
};

TEST_F(GpusTest, AMemoryIsOpenedAndItsRankIsTold) {
  StartOneNode();
  core_.OnGpuMemoryRequest(2, Request(1));
  const auto opens = Take<OpenGpuMemory>();
  ASSERT_EQ(opens.size(), 1u);
  EXPECT_EQ(opens[0].client, 2u);
  EXPECT_EQ(opens[0].id, (GpuMemoryId{1, 1}));
  EXPECT_EQ(opens[0].request.bytes, kMegabyte);
  OpenedGpuMemory opened{.gpu = 3};
  opened.ipc_handle[5] = 42;
  core_.OnGpuMemoryOpened({1, 1}, opened);
  const auto reply = Reply<session::GpuMemoryReply>();
  EXPECT_EQ(reply.number, 1u);
  EXPECT_EQ(reply.gpu, 3u);
  EXPECT_EQ(reply.code, 0u);
  EXPECT_EQ(reply.handle[5], 42);
}

TEST_F(GpusTest, TheCoordinatorLearnsWhichRankUsesWhichGpu) {
  StartOneNode();
  for (const uint32_t number : {1u, 2u, 3u}) {
    auto request = Request(number);
    request.uuid[0] = 0x4f;
    core_.OnGpuMemoryRequest(2, request);
    Drop();
    if (number == 2) {
      core_.OnGpuMemoryOpened({1, 2}, absl::UnavailableError("no room"));
      EXPECT_TRUE(TakeSent().empty());
      continue;
    }
    core_.OnGpuMemoryOpened({1, number}, OpenedGpuMemory{.gpu = 3});
    const auto sent = TakeSent();
    ASSERT_EQ(sent.size(), 1u);
    const proto::RankGpu& gpu = sent[0].rank_gpu();
    EXPECT_EQ(gpu.rank(), 1u);
    EXPECT_EQ(gpu.gpu(), 3u);
    EXPECT_EQ(gpu.uuid(), std::string("\x4f") + std::string(15, '\0'));
    EXPECT_EQ(gpu.bytes(), (number == 1 ? 1 : 2) * kMegabyte);
  }
}

TEST_F(GpusTest, ARefusalSaysWhy) {
  StartOneNode();
  core_.OnGpuMemoryRequest(1, Request(1));
  Drop();
  core_.OnGpuMemoryOpened({0, 1}, absl::UnavailableError("no driver"));
  const auto reply = Reply<session::GpuMemoryReply>();
  EXPECT_EQ(reply.code, static_cast<uint32_t>(Code::kUnavailable));
  EXPECT_STREQ(reply.text, "no driver");
}

TEST_F(GpusTest, ALackOfMemorySaysWhoSharesWhat) {
  StartOneNode();
  Open(0, 1);
  Open(0, 2);
  Open(1, 1);
  core_.OnGpuMemoryRequest(2, Request(2));
  Drop();
  core_.OnGpuMemoryOpened({1, 2}, absl::ResourceExhaustedError("no memory"));
  EXPECT_STREQ(Reply<session::GpuMemoryReply>().text,
               "no memory; shared there: 2 MiB of rank 0, 1 MiB of rank 1");
}

struct WrongRequest {
  uint32_t number;
  uint64_t bytes;
  uint32_t sharing;
};
class WrongRequestTest : public GpusTest,
                         public testing::WithParamInterface<WrongRequest> {};

TEST_P(WrongRequestTest, EndsTheEpoch) {
  StartOneNode();
  const auto [number, bytes, sharing] = GetParam();
  core_.OnGpuMemoryRequest(
      1, Request(number, bytes, static_cast<session::GpuSharing>(sharing)));
  EXPECT_NE(AbortText().find("rank 0 has sent its request for GPU memory"),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(All, WrongRequestTest,
                         testing::Values(WrongRequest{2, kMegabyte, 1},
                                         WrongRequest{1, 0, 1},
                                         WrongRequest{1, UINT64_MAX, 1},
                                         WrongRequest{1, kMegabyte, 3}));

TEST_F(GpusTest, TheExecutorReducesAndCommits) {
  StartOneNode();
  Open(0, 1, 2);
  Open(1, 1, 2);
  const uint32_t slot = Slot("x").slot;
  core_.OnReadySlot(
      OnGpu(slot, 1, 1000, {1, 2, 256}, {1, 2, kMegabyte - 4096}));
  const auto runs = Take<RunOnGpus>();
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].run.communicator, 0u);
  ASSERT_EQ(runs[0].run.operations.size(), 1u);
  const GpuOperation& r = runs[0].run.operations[0];
  EXPECT_EQ(r.slot, slot);
  EXPECT_EQ(r.generation, 1u);
  EXPECT_EQ(r.dtype, DType::kFloat32);
  EXPECT_EQ(r.op, Op::kAverage);
  EXPECT_EQ(r.elements, 1000u);
  EXPECT_EQ(r.divisor, 2);
  EXPECT_EQ(r.prescale, 1.0);
  EXPECT_EQ(r.postscale, 0.5);
  ASSERT_EQ(r.tensors.size(), 2u);
  EXPECT_EQ(r.tensors[0].memory, (GpuMemoryId{0, 1}));
  EXPECT_EQ(r.tensors[0].offset, 256u);
  EXPECT_EQ(r.tensors[0].gpu, 2u);
  EXPECT_EQ(r.tensors[1].memory, (GpuMemoryId{1, 1}));
  EXPECT_EQ(r.tensors[1].offset, kMegabyte - 4096);
  Ended(slot, 1, absl::OkStatus());
  const auto commits = Take<CommitSlot>();
  ASSERT_EQ(commits.size(), 1u);
  EXPECT_EQ(commits[0].slot, slot);
  EXPECT_EQ(commits[0].generation, 1u);
}

TEST_F(GpusTest, AReadyBitThatIsSetTwiceReducesOnce) {
  StartOneNode();
  Open(0, 1);
  Open(1, 1);
  const uint32_t slot = Slot("x").slot;
  const ReadySlot ready = OnGpu(slot, 1, 100, {1, 0, 0}, {1, 0, 0});
  core_.OnReadySlot(ready);
  core_.OnReadySlot(ready);
  EXPECT_EQ(Take<RunOnGpus>().size(), 1u);
}

TEST_F(GpusTest, ANameIsNotSubmittedAgainBeforeItsReductionHasEnded) {
  StartOneNode();
  Open(0, 1);
  Open(1, 1);
  const uint32_t slot = Slot("x").slot;
  core_.OnReadySlot(OnGpu(slot, 1, 100, {1, 0, 0}, {1, 0, 0}));
  core_.OnReadySlot(OnGpu(slot, 2, 100, {1, 0, 0}, {1, 0, 0}));
  std::string text;
  for (const Action& action : core_.TakeActions()) {
    const auto* abort = std::get_if<AbortBoard>(&action);
    if (abort != nullptr) text = abort->text;
  }
  EXPECT_NE(text.find("(call 2) before call 1 had ended"), std::string::npos)
      << text;
}

// The executor checks what a rank has written: offset, memory and GPU.
class ForgedPlaceTest : public GpusTest,
                        public testing::WithParamInterface<GpuPlace> {};

TEST_P(ForgedPlaceTest, EndsTheEpochWithTheRanksName) {
  StartOneNode();
  Open(0, 1);
  Open(1, 1);
  const uint32_t slot = Slot("x").slot;
  core_.OnReadySlot(OnGpu(slot, 1, 1000, {1, 0, 0}, GetParam()));
  std::string text;
  for (const Action& action : core_.TakeActions()) {
    EXPECT_FALSE(std::holds_alternative<RunOnGpus>(action));
    const auto* abort = std::get_if<AbortBoard>(&action);
    if (abort != nullptr) text = abort->text;
  }
  EXPECT_NE(text.find("rank 1 has submitted allreduce 'x' with 4000 bytes and "
                      "room for 0 at offset " +
                      std::to_string(GetParam().offset)),
            std::string::npos)
      << text;
}

INSTANTIATE_TEST_SUITE_P(
    All, ForgedPlaceTest,
    testing::Values(GpuPlace{1, 0, kMegabyte - 256},  // its end lies outside
                    GpuPlace{1, 0, kMaxGpuMemoryBytes - 256},
                    GpuPlace{2, 0, 0},    // no such memory
                    GpuPlace{1, 1, 0}));  // on another GPU

TEST_F(GpusTest, AMemoryThatIsNotOpenYetCannotBeUsed) {
  StartOneNode();
  Open(0, 1);
  core_.OnGpuMemoryRequest(2, Request(1));
  const uint32_t slot = Slot("x").slot;
  Drop();
  core_.OnReadySlot(OnGpu(slot, 1, 10, {1, 0, 0}, {1, 0, 0}));
  EXPECT_NE(AbortText().find("rank 1 has submitted"), std::string::npos);
}

TEST_F(GpusTest, AMismatchOnACorruptBoardFailsTheOperation) {
  StartOneNode();
  Open(0, 1);
  Open(1, 1);
  const uint32_t slot = Slot("x").slot;
  ReadySlot ready = OnGpu(slot, 1, 100, {1, 0, 0}, {1, 0, 0});
  ready.signatures[1].shape[0] = 101;
  core_.OnReadySlot(ready);
  const auto fails = Take<FailSlot>();
  ASSERT_EQ(fails.size(), 1u);
  EXPECT_EQ(fails[0].code, Code::kFailedPrecondition);
  EXPECT_NE(fails[0].text.find("101"), std::string::npos) << fails[0].text;
}

TEST_F(GpusTest, AnErrorOfTheGpuEndsTheEpochAndNamesTheOperation) {
  StartOneNode();
  Open(0, 1);
  Open(1, 1);
  const uint32_t slot = Slot("x").slot;
  core_.OnReadySlot(OnGpu(slot, 1, 100, {1, 0, 0}, {1, 0, 0}));
  Drop();
  Ended(slot, 1, absl::InternalError("GPU-1: launch failed"));
  const std::string text = AbortText();
  EXPECT_NE(text.find("allreduce 'x' failed on the GPU of node n0"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("GPU-1: launch failed"), std::string::npos);
}

TEST_F(GpusTest, ADepartedRanksMemoryIsClosedAndItsOperationsFail) {
  StartOneNode();
  Open(0, 1);
  Open(1, 1);
  const uint32_t x = Slot("x").slot;
  const uint32_t y = Slot("y").slot;
  core_.OnReadySlot(OnGpu(x, 1, 100, {1, 0, 0}, {1, 0, 0}));
  Drop();
  core_.OnGoodbye(2, /*pending=*/0);
  std::vector<CloseGpuMemories> closed;
  for (const Action& action : core_.TakeActions()) {
    const auto* close = std::get_if<CloseGpuMemories>(&action);
    if (close != nullptr) closed.push_back(*close);
  }
  ASSERT_EQ(closed.size(), 1u);
  EXPECT_EQ(closed[0].local, 1u);
  // One operation was running; the other comes from the board now.
  Ended(x, 1, absl::UnavailableError("closed"));
  core_.OnReadySlot(OnGpu(y, 1, 100, {1, 0, 0}, {1, 0, 0}));
  const auto fails = Take<FailSlot>();
  ASSERT_EQ(fails.size(), 2u);
  EXPECT_EQ(fails[0].slot, x);
  EXPECT_EQ(fails[1].slot, y);
  for (const FailSlot& fail : fails) {
    EXPECT_EQ(fail.code, Code::kAborted);
    EXPECT_NE(fail.text.find("rank 1 has shut down"), std::string::npos);
  }
  // The answer to its request comes too late.
  core_.OnGpuMemoryOpened({1, 1}, OpenedGpuMemory{});
  EXPECT_TRUE(Take<ReplyClient>().empty());
}

}  // namespace
}  // namespace maypole::worker
