// Collectives of more than 2^31 elements on two ranks, every value checked.
//
//   large_ranks --agents=/path/a[,/path/b] --kind=allreduce
//
// Ends with 0 and prints "large: KIND ok, N seconds" if all values were right.
// Takes up to 7 GiB. The agents must run already: see daemons.py.
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "client/api/client.h"
#include "tests/properties/player/ranks.h"

ABSL_FLAG(std::vector<std::string>, agents, {}, "sockets, one a node");
ABSL_FLAG(std::string, kind, "allreduce",
          "or broadcast, allgather, alltoall, reducescatter");
ABSL_FLAG(int64_t, elements, (int64_t{1} << 31) + 5, "one byte each");

namespace maypole::properties {
namespace {

constexpr int kRanks = 2;
constexpr int64_t kBlock = 256;

using Buffer = std::unique_ptr<uint8_t[]>;

// What rank `rank` has at place i.
uint8_t Value(int rank, int64_t i) {
  const auto block = static_cast<uint64_t>(i / kBlock);
  const uint64_t mixed = (block + 1) * 0x9e3779b97f4a7c15;
  return static_cast<uint8_t>((mixed >> 56) + static_cast<uint64_t>(i) * 3 +
                              static_cast<uint64_t>(rank) * 101);
}

Buffer Fill(int rank, int64_t n) {
  Buffer out(new uint8_t[static_cast<size_t>(n)]);
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const uint8_t first = Value(rank, begin);
    const int64_t end = std::min(n, begin + kBlock);
    for (int64_t i = begin; i < end; ++i) {
      out[static_cast<size_t>(i)] =
          static_cast<uint8_t>(first + static_cast<uint8_t>(i - begin) * 3);
    }
  }
  return out;
}

// The first place where `got` is not what it should be, as a sentence; "".
// want(i): what it should be.
template <typename Want>
std::string Compare(const void* got, int64_t n, const Want& want) {
  const auto* bytes = static_cast<const uint8_t*>(got);
  uint8_t block[kBlock];
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t length = std::min(n - begin, kBlock);
    for (int64_t i = 0; i < length; ++i) block[i] = want(begin + i);
    if (std::memcmp(bytes + begin, block, static_cast<size_t>(length)) == 0) {
      continue;
    }
    for (int64_t i = 0; i < length; ++i) {
      if (bytes[begin + i] == block[i]) continue;
      return "byte " + std::to_string(begin + i) + " of " + std::to_string(n) +
             " is " + std::to_string(bytes[begin + i]) + ", expected " +
             std::to_string(block[i]);
    }
  }
  return "";
}

// One rank's part. Each function gives "" or what is wrong.
class LargeRank {
 public:
  LargeRank(Client* client, int rank, int64_t n)
      : client_(client), rank_(rank), n_(n) {}

  std::string Run(const std::string& kind) {
    if (kind == "allreduce") return Allreduce();
    if (kind == "broadcast") return Broadcast();
    if (kind == "allgather") return Allgather();
    if (kind == "alltoall") return Alltoall();
    if (kind == "reducescatter") return Reducescatter();
    return "unknown kind";
  }

 private:
  // Waits; check(result) before the result is released.
  std::string Finish(const Status& submitted, int64_t handle,
                     const std::function<std::string(const Result&)>& check) {
    Status s = submitted;
    if (s.ok()) s = client_->Wait(handle, -1);
    Result result;
    if (s.ok()) s = client_->GetResult(handle, &result);
    const std::string wrong = s.ok() ? check(result) : s.message();
    (void)client_->Release(handle);
    return wrong;
  }

  static std::string CheckRows(const Result& r, int64_t rows) {
    if (r.first_dim == rows && r.bytes == rows) return "";
    return "the result has " + std::to_string(r.first_dim) + " rows and " +
           std::to_string(r.bytes) + " bytes, expected " + std::to_string(rows);
  }

  std::string Allreduce() {
    Buffer x = Fill(rank_, n_);
    int64_t handle = 0;
    const Status s =
        client_->Allreduce("large", {DType::kUint8, {n_}, x.get(), x.get()},
                           {.op = Op::kSum}, &handle);
    return Finish(s, handle, [&](const Result&) {
      return Compare(x.get(), n_, [](int64_t i) {
        return static_cast<uint8_t>(Value(0, i) + Value(1, i));
      });
    });
  }

  std::string Broadcast() {
    Buffer x = Fill(rank_, n_);
    int64_t handle = 0;
    const Status s = client_->Broadcast(
        "large", {DType::kBool, {n_}, x.get(), x.get()}, 1, &handle);
    return Finish(s, handle, [&](const Result&) {
      return Compare(x.get(), n_, [](int64_t i) { return Value(1, i); });
    });
  }

  // Nearly all rows are one rank's.
  std::string Allgather() {
    const int64_t rows[kRanks] = {n_ - 7, 9};
    Buffer x = Fill(rank_, rows[rank_]);
    int64_t handle = 0;
    const Status s = client_->Allgather(
        "large", {DType::kUint8, {rows[rank_]}, x.get(), nullptr}, &handle);
    return Finish(s, handle, [&](const Result& r) {
      std::string wrong = CheckRows(r, rows[0] + rows[1]);
      if (!wrong.empty()) return wrong;
      return Compare(r.data, r.first_dim, [&](int64_t i) {
        return i < rows[0] ? Value(0, i) : Value(1, i - rows[0]);
      });
    });
  }

  // Rank 0 sends nearly all to rank 1.
  std::string Alltoall() {
    const std::vector<std::vector<int64_t>> splits = {{3, n_}, {5, 11}};
    const auto& mine = splits[static_cast<size_t>(rank_)];
    Buffer x = Fill(rank_, mine[0] + mine[1]);
    int64_t handle = 0;
    const Status s = client_->Alltoall(
        "large", {DType::kInt8, {mine[0] + mine[1]}, x.get(), nullptr}, mine,
        &handle);
    return Finish(s, handle, [&](const Result& r) {
      const auto me = static_cast<size_t>(rank_);
      const int64_t from0 = splits[0][me], from1 = splits[1][me];
      std::string wrong = CheckRows(r, from0 + from1);
      if (wrong.empty() &&
          r.received_splits != std::vector<int64_t>{from0, from1}) {
        wrong = "other received splits";
      }
      if (!wrong.empty()) return wrong;
      const int64_t skip0 = rank_ == 1 ? splits[0][0] : 0;
      const int64_t skip1 = rank_ == 1 ? splits[1][0] : 0;
      return Compare(r.data, r.first_dim, [&](int64_t i) {
        return i < from0 ? Value(0, skip0 + i) : Value(1, skip1 + i - from0);
      });
    });
  }

  // Rows of more than one element, so that the number of rows is below 2^31.
  std::string Reducescatter() {
    const int64_t rows = n_ / 3;
    const int64_t mine = rows / 2 + (rank_ < rows % 2 ? 1 : 0);
    const int64_t first = rank_ == 0 ? 0 : (rows - mine) * 3;
    Buffer x = Fill(rank_, rows * 3);
    Buffer out(new uint8_t[static_cast<size_t>(mine * 3)]);
    int64_t handle = 0;
    const Status s = client_->Reducescatter(
        "large", {DType::kUint8, {rows, 3}, x.get(), out.get()},
        {.op = Op::kSum}, &handle);
    return Finish(s, handle, [&](const Result&) {
      return Compare(out.get(), mine * 3, [&](int64_t i) {
        return static_cast<uint8_t>(Value(0, first + i) + Value(1, first + i));
      });
    });
  }

  Client* const client_;
  const int rank_;
  const int64_t n_;
};

int RunRank(int rank) {
  const auto agents = absl::GetFlag(FLAGS_agents);
  std::unique_ptr<Client> client;
  Status s = Client::Join(OptionsOf(rank, kRanks, agents, "large"), &client);
  std::string wrong = s.message();
  const int64_t start = NowNs();
  if (s.ok()) {
    LargeRank large(client.get(), rank, absl::GetFlag(FLAGS_elements));
    wrong = large.Run(absl::GetFlag(FLAGS_kind));
  }
  const std::string kind = absl::GetFlag(FLAGS_kind);
  if (!wrong.empty()) {
    std::fprintf(stderr, "WRONG: rank %d: %s: %s\n", rank, kind.c_str(),
                 wrong.c_str());
    return 1;
  }
  // Nobody leaves while another's result is under way.
  int64_t handle = 0;
  s = client->Barrier(&handle);
  if (s.ok()) s = client->Wait(handle, -1);
  (void)client->Release(handle);
  client->Leave();
  if (rank == 0 && s.ok()) {
    std::printf("large: %s ok, %.1f seconds\n", kind.c_str(),
                static_cast<double>(NowNs() - start) / 1e9);
  }
  return s.ok() ? 0 : 1;
}

int Main() {
  std::vector<pid_t> pids;
  for (int rank = 0; rank < kRanks; ++rank) {
    pids.push_back(Fork([rank] { return RunRank(rank); }));
  }
  int result = 0;
  for (int i = 0; i < kRanks; ++i) {
    int status = 0;
    if (waitpid(-1, &status, 0) < 0) break;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    result = 1;
    for (const pid_t pid : pids) kill(pid, SIGKILL);
  }
  return result;
}

}  // namespace
}  // namespace maypole::properties

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return maypole::properties::Main();
}
