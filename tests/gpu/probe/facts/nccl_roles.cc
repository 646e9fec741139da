// The role of fact 7: one rank of a communicator of two.
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "tests/gpu/probe/facts/fact_roles.h"
#include "tests/gpu/probe/facts/staging.h"
#include "tests/gpu/probe/lab/conversation.h"
#include "worker/backend/gpu/owned.h"

namespace maypole::probe {
namespace {

constexpr int kRanks = 2;
constexpr Duration kStep = Seconds(20);
constexpr Duration kStillWaiting = Seconds(1);
constexpr Duration kImpatient = Seconds(0.01);

double Milliseconds(int64_t from, int64_t to) {
  return static_cast<double>(to - from) / 1e6;
}

class NcclRank {
 public:
  explicit NcclRank(Stage& stage)
      : stage_(stage),
        gpu_(stage.gpu()),
        rank_(static_cast<int>(stage.Number(0))) {}
  absl::Status Open(uint64_t bytes);
  absl::StatusOr<std::string> Handle(Words& words);

 private:
  absl::StatusOr<std::string> MakeId();
  absl::StatusOr<std::string> Join(const std::string& id);
  // Until no call on the communicator is in progress.
  absl::Status AwaitReady(Duration timeout);
  absl::Status AllReduce(uint64_t elements, Duration timeout);
  absl::StatusOr<std::string> Sum(uint64_t elements);
  absl::StatusOr<std::string> Time(uint64_t elements, int64_t times);
  absl::StatusOr<std::string> Alone(uint64_t elements);
  absl::StatusOr<std::string> Listen(double seconds);
  absl::StatusOr<std::string> Abort();
  absl::StatusOr<std::string> Health();

  Stage& stage_;
  gpu::Gpu& gpu_;
  const int rank_;
  gpu::OwnedStream stream_;
  Staging staging_;
  gpu::OwnedMemory data_;
  gpu::Communicator communicator_;  // ended by Abort(), or with the process
};

absl::Status NcclRank::Open(uint64_t bytes) {
  auto stream = gpu::OwnedStream::Create(gpu_);
  if (!stream.ok()) return stream.status();
  stream_ = *std::move(stream);
  auto staging = Staging::Create(gpu_);
  if (!staging.ok()) return staging.status();
  staging_ = *std::move(staging);
  auto data = gpu::OwnedMemory::Allocate(gpu_, bytes);
  if (!data.ok()) return data.status();
  data_ = *std::move(data);
  // What is loaded at first use is loaded before NCCL's kernels wait for each
  // other.
  return Health().status();
}

absl::StatusOr<std::string> NcclRank::MakeId() {
  const auto id = gpu_.MakeNcclId();
  if (!id.ok()) return id.status();
  return absl::StrCat(
      "id ", absl::BytesToHexString(absl::string_view(
                 reinterpret_cast<const char*>(id->data()), id->size())));
}

absl::Status NcclRank::AwaitReady(Duration timeout) {
  const auto start = Clock::now();
  for (;;) {
    const auto state = gpu_.PollCommunicator(communicator_);
    if (!state.ok()) return state.status();
    if (*state == gpu::CommunicatorState::kReady) return absl::OkStatus();
    const Duration waited = Clock::now() - start;
    if (waited > timeout) {
      return absl::DeadlineExceededError(
          "the communicator was still in progress");
    }
    // At first at once: this is part of what is timed.
    if (waited < kImpatient) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

// "join ID". "refused": by NCCL, with its words.
absl::StatusOr<std::string> NcclRank::Join(const std::string& id) {
  const std::string bytes = absl::HexStringToBytes(id);
  gpu::NcclId nccl_id = {};
  if (bytes.size() != nccl_id.size()) {
    return absl::InternalError("not the id of a communicator");
  }
  std::memcpy(nccl_id.data(), bytes.data(), bytes.size());
  const int64_t start = Now();
  const auto joined = gpu_.JoinCommunicator(nccl_id, kRanks, rank_);
  if (!joined.ok()) return absl::StrCat("refused ", joined.status().message());
  communicator_ = *joined;
  const absl::Status ready = AwaitReady(kStep);
  if (absl::IsDeadlineExceeded(ready)) return ready;
  if (!ready.ok()) return absl::StrCat("refused ", ready.message());
  return absl::StrCat("joined ", Milliseconds(start, Now()));
}

absl::Status NcclRank::AllReduce(uint64_t elements, Duration timeout) {
  const auto deadline = Clock::now() + timeout;
  absl::Status status = gpu_.AllReduce(
      communicator_, stream_.get(), data_.address(), elements, DType::kFloat32);
  // Only then is it on the stream.
  if (status.ok()) status = AwaitReady(deadline - Clock::now());
  if (status.ok()) {
    status = WaitDone(gpu_, stream_.get(), deadline - Clock::now());
  }
  return status;
}

// "sum ELEMENTS": is the sum of both ranks' patterns right, and how long did it
// take?
absl::StatusOr<std::string> NcclRank::Sum(uint64_t elements) {
  absl::Status status =
      staging_.Put(stream_.get(), data_.address(),
                   {DType::kFloat32, static_cast<uint64_t>(rank_)}, elements);
  if (!status.ok()) return status;
  const int64_t start = Now();
  status = AllReduce(elements, kStep);
  if (!status.ok()) return status;
  const double ms = Milliseconds(start, Now());
  const uint64_t seeds[kRanks] = {0, 1};
  const auto check = staging_.Check(stream_.get(), data_.address(),
                                    DType::kFloat32, seeds, elements);
  if (!check.ok()) return check.status();
  if (check->wrong.has_value()) return absl::DataLossError(*check->wrong);
  return absl::StrCat("summed ", ms, " ", check->checked);
}

// "time ELEMENTS TIMES"
absl::StatusOr<std::string> NcclRank::Time(uint64_t elements, int64_t times) {
  std::vector<double> measured;
  for (int64_t i = 0; i < times; ++i) {
    const int64_t start = Now();
    const absl::Status status = AllReduce(elements, kStep);
    if (!status.ok()) return status;
    measured.push_back(Milliseconds(start, Now()));
  }
  return absl::StrCat("timed ", absl::StrJoin(measured, " "));
}

// "alone ELEMENTS": calls what the other rank does not. "alone 1": it waits.
absl::StatusOr<std::string> NcclRank::Alone(uint64_t elements) {
  const absl::Status status = AllReduce(elements, kStillWaiting);
  if (absl::IsDeadlineExceeded(status)) return "alone 1";
  if (!status.ok()) return status;
  return "alone 0";
}

// "listen SECONDS": does NCCL say by itself that something is wrong?
absl::StatusOr<std::string> NcclRank::Listen(double seconds) {
  const int64_t start = Now();
  while (Now() - start < Seconds(seconds).count()) {
    const auto state = gpu_.PollCommunicator(communicator_);
    if (!state.ok()) {
      return absl::StrCat("heard ", Milliseconds(start, Now()), " ",
                          state.status().message());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return "heard 0";
}

// "abort": how long until the call came back, and until the stream was done.
absl::StatusOr<std::string> NcclRank::Abort() {
  const int64_t start = Now();
  const absl::Status aborted = gpu_.AbortCommunicator(communicator_);
  const int64_t returned = Now();
  if (!aborted.ok()) return aborted;
  const absl::Status done = WaitDone(gpu_, stream_.get(), kStep);
  if (!done.ok()) return done;
  return absl::StrCat("aborted ", Milliseconds(start, returned), " ",
                      Milliseconds(start, Now()));
}

// "health": do kernels and copies of this process still work?
absl::StatusOr<std::string> NcclRank::Health() {
  constexpr uint32_t kWord = 0x12345678;
  constexpr uint64_t kWords = 256;
  const gpu::Address half = data_.address() + 4 * kWords;
  absl::Status status =
      gpu_.Fill(stream_.get(), data_.address(), kWord, kWords);
  if (status.ok()) {
    status =
        gpu_.KernelCopy(stream_.get(), half, data_.address(), 4 * kWords, 0);
  }
  if (!status.ok()) return status;
  const auto holds = staging_.Holds(stream_.get(), half, kWord, kWords);
  if (!holds.ok()) return holds.status();
  return *holds ? "healthy 1" : "healthy 0";
}

absl::StatusOr<std::string> NcclRank::Handle(Words& words) {
  const uint64_t elements = static_cast<uint64_t>(words.Integer(1));
  if (words[0] == "nccl") {
    const gpu::Versions& versions = stage_.versions();
    return absl::StrCat("nccl ", versions.nccl, " ", versions.nccl_error);
  }
  if (words[0] == "id") return MakeId();
  if (words[0] == "join") return Join(words[1]);
  if (words[0] == "sum") return Sum(elements);
  if (words[0] == "time") return Time(elements, words.Integer(2));
  if (words[0] == "alone") return Alone(elements);
  if (words[0] == "listen") return Listen(words.Number(1));
  if (words[0] == "abort") return Abort();
  return Health();
}

}  // namespace

// Arguments: rank, the most bytes.
absl::Status PlayNcclRank(Stage& stage) {
  NcclRank rank(stage);
  const absl::Status status = rank.Open(static_cast<uint64_t>(stage.Number(1)));
  if (!status.ok()) return status;
  return Serve(stage, [&](Words& words) { return rank.Handle(words); });
}

}  // namespace maypole::probe
