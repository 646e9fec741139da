// Fact 7: two processes of one GPU in one NCCL communicator.
//
// NCCL refuses two ranks on one device of one host; it knows hosts by
// NCCL_HOSTID. With different ones both ranks talk over the network (sockets
// here, so that the answer does not depend on the machine's network). Each
// experiment has a pair of processes of its own, and every step a deadline: to
// hang is an answer, and ends that pair.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/gpu/probe/facts/facts.h"
#include "tests/gpu/probe/lab/conversation.h"
#include "tests/gpu/probe/lab/nccl_log.h"

namespace maypole::probe {
namespace {

constexpr int kFact = 7;
constexpr Duration kStep = Seconds(25);  // longer than the role's own deadline
constexpr Duration kEnd = Seconds(5);
// Of one mode, with and without MPS; and of the repetitions of one size.
constexpr Duration kSizesTime = Seconds(25);
constexpr double kRepetitionsMs = 1500;
constexpr int kMostTimes = 20;
constexpr size_t kWarnings = 2;

constexpr char kSame[] = "equal NCCL_HOSTID";
constexpr char kJoin[] = "different NCCL_HOSTID: join";
constexpr char kSums[] = "different NCCL_HOSTID: all-reduce";
constexpr char kAbort[] = "one does not call, both abort";
constexpr char kKilled[] = "one is killed, the other aborts";
constexpr const char* kRows[] = {kSame, kJoin, kSums, kAbort, kKilled};

std::vector<uint64_t> Sizes(const Options& options) {
  if (options.quick) return {4 << 10, 64 << 10};
  std::vector<uint64_t> sizes;
  for (uint64_t bytes = 4 << 10; bytes <= 256 << 20; bytes *= 4) {
    sizes.push_back(bytes);
  }
  return sizes;
}

// Where NCCL writes what it warns of.
class Logs {
 public:
  Logs() {
    const char* tmp = std::getenv("TMPDIR");
    directory_ = absl::StrCat(tmp != nullptr ? tmp : "/tmp", "/probe-XXXXXX");
    if (mkdtemp(directory_.data()) == nullptr) directory_.clear();
  }
  ~Logs() {
    std::error_code ignored;
    if (!directory_.empty()) {
      std::filesystem::remove_all(directory_, ignored);
    }
  }
  Logs(const Logs&) = delete;
  Logs& operator=(const Logs&) = delete;

  std::string path(int rank) const {
    return absl::StrCat(directory_, "/rank", rank);
  }
  // What both ranks warned of last: ". NCCL: ...", or nothing.
  std::string Text() const {
    std::string all;
    for (const int rank : {0, 1}) {
      std::ifstream file(path(rank));
      all.append(std::istreambuf_iterator<char>(file), {});
      all += '\n';
    }
    const std::string warnings = LastWarnings(all, kWarnings);
    return warnings.empty() ? "" : absl::StrCat(". NCCL: ", warnings);
  }

 private:
  std::string directory_;
};

class Pair {
 public:
  // Two ranks that have opened the device; kUnavailable: without NCCL.
  static absl::StatusOr<Pair> Start(Lab& lab, const Logs& logs,
                                    const std::array<std::string, 2>& hosts);

  std::vector<Actor>& ranks() { return ranks_; }
  // Each rank's answer: "joined MS" or "refused TEXT".
  absl::StatusOr<std::vector<Words>> Join();
  // The same, where a refusal is an error.
  absl::StatusOr<double> JoinOrFail();
  void Kill() {
    for (Actor& rank : ranks_) rank.Kill();
  }
  // Ends both, by force if it must be.
  void End() {
    for (Actor& rank : ranks_) rank.End(kEnd).IgnoreError();
  }

 private:
  std::vector<Actor> ranks_;
};

absl::StatusOr<Pair> Pair::Start(Lab& lab, const Logs& logs,
                                 const std::array<std::string, 2>& hosts) {
  Pair pair;
  for (int rank = 0; rank < 2; ++rank) {
    auto actor = lab.Start(
        "nccl rank",
        {absl::StrCat(rank), absl::StrCat(Sizes(lab.options()).back())},
        {{"NCCL_HOSTID", hosts[static_cast<size_t>(rank)]},
         {"NCCL_NET", "Socket"},
         {"NCCL_SOCKET_IFNAME", "lo"},  // whatever else the machine has
         // NCCL has hundreds of kernels, and loads what it needs by itself.
         {"CUDA_MODULE_LOADING", "LAZY"},
         {"NCCL_DEBUG", "WARN"},
         {"NCCL_DEBUG_FILE", logs.path(rank)}});
    if (!actor.ok()) return actor.status();
    pair.ranks_.push_back(*std::move(actor));
  }
  const auto nccl = AskAll(pair.ranks_, "nccl", "nccl", kStep);
  if (!nccl.ok()) return nccl.status();
  if (nccl->front().Integer(1) == 0) {
    return absl::UnavailableError(
        absl::StrCat("no NCCL: ", nccl->front().Rest(2)));
  }
  return pair;
}

absl::StatusOr<std::vector<Words>> Pair::Join() {
  const auto id = Ask(ranks_[0], "id", "id", kStep);
  if (!id.ok()) return id.status();
  for (Actor& rank : ranks_) {
    const absl::Status sent =
        rank.channel().Send(absl::StrCat("join ", (*id)[1]));
    if (!sent.ok()) return sent;
  }
  std::vector<Words> out;
  for (Actor& rank : ranks_) {
    auto line = rank.channel().Receive(kStep);
    if (!line.ok()) return line.status();
    Words words(*std::move(line));
    if (words[0] == "error") {
      return absl::Status(static_cast<absl::StatusCode>(words.Integer(1)),
                          words.Rest(2));
    }
    out.push_back(std::move(words));
  }
  return out;
}

absl::StatusOr<double> Pair::JoinOrFail() {
  const auto joined = Join();
  if (!joined.ok()) return joined.status();
  double ms = 0;
  for (const Words& words : *joined) {
    if (words[0] != "joined") return absl::AbortedError(words.Rest(1));
    ms = std::max(ms, words.Number(1));
  }
  return ms;
}

// What one mode's experiments share.
struct Mode {
  Lab& lab;
  std::string name;  // "no MPS", "MPS"
  std::string RowName(const std::string& row) const {
    return absl::StrCat(row, ", ", name);
  }
  void Measured(const std::string& row, std::string text,
                std::vector<Figure> figures) const {
    lab.report().Add({kFact, RowName(row), Outcome::kMeasured, std::move(text),
                      std::move(figures)});
  }
  void Missing(const std::string& row, const std::string& why) const {
    lab.report().NotMeasured(kFact, RowName(row), why);
  }
  // Refusals and errors of NCCL are answers, as hangs and crashes are.
  void Trouble(const std::string& row, const std::string& doing,
               const absl::Status& status, const Logs& logs) const {
    if (absl::IsAborted(status)) {
      return Measured(
          row, absl::StrCat("NCCL refuses: ", status.message(), logs.Text()),
          {});
    }
    if (absl::IsUnavailable(status)) {
      return Measured(row,
                      absl::StrCat("a rank's process ENDS: ", doing, ": ",
                                   status.message(), logs.Text()),
                      {});
    }
    AddTrouble(lab, kFact, RowName(row), doing,
               absl::Status(status.code(),
                            absl::StrCat(status.message(), logs.Text())));
  }
};

// --- Joining -----------------------------------------------------------------

void JoinAsOneHost(const Mode& mode) {
  const Logs logs;
  auto pair = Pair::Start(mode.lab, logs, {"probe", "probe"});
  if (!pair.ok()) return mode.Trouble(kSame, "start", pair.status(), logs);
  const auto joined = pair->JoinOrFail();
  if (joined.ok()) {
    mode.Measured(kSame, "accepted", {{"join", *joined, "ms"}});
  } else {
    mode.Trouble(kSame, "join", joined.status(), logs);
  }
  pair->End();  // in good order: a client of MPS that is killed may disturb
}

absl::StatusOr<Pair> StartJoined(const Mode& mode, const Logs& logs,
                                 double* ms) {
  auto pair = Pair::Start(mode.lab, logs, {"probe-0", "probe-1"});
  if (!pair.ok()) return pair.status();
  const auto joined = pair->JoinOrFail();
  if (!joined.ok()) return joined.status();
  *ms = *joined;
  return pair;
}

// --- All-reduces -------------------------------------------------------------

absl::Status SumOneSize(Pair& pair, uint64_t bytes,
                        std::vector<Figure>& figures) {
  const uint64_t elements = bytes / 4;
  const auto summed =
      AskAll(pair.ranks(), absl::StrCat("sum ", elements), "summed", kStep);
  if (!summed.ok()) return summed.status();
  // The first of a size may connect: the second says how many can be timed.
  const auto second = AskAll(
      pair.ranks(), absl::StrCat("time ", elements, " 1"), "timed", kStep);
  if (!second.ok()) return second.status();
  std::vector<double> ms = {second->front().Number(1)};
  const int times =
      static_cast<int>(std::clamp(kRepetitionsMs / std::max(ms[0], 0.001), 0.0,
                                  static_cast<double>(kMostTimes)));
  if (times > 0) {
    const auto timed =
        AskAll(pair.ranks(), absl::StrCat("time ", elements, " ", times),
               "timed", kStep);
    if (!timed.ok()) return timed.status();
    ms = timed->front().Numbers(1);
  }
  const std::string size = SizeText(bytes);
  figures.push_back({size, Quantile(ms, 0.5), "ms"});
  figures.push_back({size + " slowest", Quantile(ms, 1), "ms"});
  figures.push_back({size + " times", static_cast<double>(ms.size()), ""});
  return absl::OkStatus();
}

// How far it went.
enum class Sums { kNone, kSome, kAll };
Sums SumAllSizes(const Mode& mode, Pair& pair, const Logs& logs) {
  std::vector<Figure> figures;
  const auto end = Clock::now() + kSizesTime;
  std::string until;
  for (const uint64_t bytes : Sizes(mode.lab.options())) {
    if (Clock::now() > end) {
      until = absl::StrCat("; no time for ", SizeText(bytes), " and more");
      break;
    }
    const absl::Status status = SumOneSize(pair, bytes, figures);
    if (status.ok()) continue;
    const std::string doing = absl::StrCat("all-reduce of ", SizeText(bytes));
    if (absl::IsDataLoss(status) || figures.empty()) {
      mode.Trouble(kSums, doing, status, logs);
    } else {
      // What went well before is worth keeping.
      const char* verdict =
          absl::IsDeadlineExceeded(status) ? "HANGS" : "FAILS";
      mode.Measured(kSums,
                    absl::StrCat(verdict, ": ", doing, ": ", status.message(),
                                 logs.Text()),
                    figures);
    }
    return figures.empty() ? Sums::kNone : Sums::kSome;
  }
  mode.Measured(kSums, absl::StrCat("works; sums right at both ranks", until),
                figures);
  return Sums::kAll;
}

// --- Aborts ------------------------------------------------------------------

absl::StatusOr<std::string> Healthy(Actor& rank) {
  const auto health = Ask(rank, "health", "healthy", kStep);
  if (!health.ok()) return health.status();
  return health->Integer(1) == 1 ? "good" : "BROKEN";
}

absl::StatusOr<bool> WaitsAlone(Pair& pair) {
  const auto alone = Ask(pair.ranks()[0], "alone 1024", "alone", kStep);
  if (!alone.ok()) return alone.status();
  return alone->Integer(1) == 1;
}

absl::Status AbortBoth(const Mode& mode, Pair& pair) {
  const auto waits = WaitsAlone(pair);
  if (!waits.ok()) return waits.status();
  const auto aborted = AskAll(pair.ranks(), "abort", "aborted", kStep);
  if (!aborted.ok()) return aborted.status();
  std::string contexts;
  for (Actor& rank : pair.ranks()) {
    const auto healthy = Healthy(rank);
    if (!healthy.ok()) return healthy.status();
    absl::StrAppend(&contexts, contexts.empty() ? "" : ", ", *healthy);
  }
  const Words& waiting = (*aborted)[0];
  const Words& idle = (*aborted)[1];
  mode.Measured(
      kAbort,
      absl::StrCat(*waits ? "it waits" : "it does NOT wait",
                   "; abort ends it; contexts afterwards: ", contexts),
      {{"abort of the waiting", waiting.Number(1), "ms"},
       {"its stream done", waiting.Number(2), "ms"},
       {"abort of the other", idle.Number(1), "ms"}});
  return absl::OkStatus();
}

absl::Status AbortAfterDeath(const Mode& mode, Pair& pair) {
  const auto summed = AskAll(pair.ranks(), "sum 1024", "summed", kStep);
  if (!summed.ok()) return summed.status();
  const auto waits = WaitsAlone(pair);
  if (!waits.ok()) return waits.status();
  pair.ranks()[1].Kill();
  const int patience = mode.lab.options().quick ? 1 : 5;  // seconds
  const auto heard =
      Ask(pair.ranks()[0], absl::StrCat("listen ", patience), "heard", kStep);
  if (!heard.ok()) return heard.status();
  const auto aborted = Ask(pair.ranks()[0], "abort", "aborted", kStep);
  if (!aborted.ok()) return aborted.status();
  const auto healthy = Healthy(pair.ranks()[0]);
  if (!healthy.ok()) return healthy.status();
  std::vector<Figure> figures = {{"abort", aborted->Number(1), "ms"},
                                 {"its stream done", aborted->Number(2), "ms"}};
  std::string told =
      absl::StrCat("NCCL says nothing of the death in ", patience, " s");
  if (heard->Number(1) > 0) {
    told = absl::StrCat("NCCL tells of the death: ", heard->Rest(2));
    figures.push_back({"until told", heard->Number(1), "ms"});
  }
  mode.Measured(
      kKilled,
      absl::StrCat(told,
                   "; abort ends the wait; context afterwards: ", *healthy),
      figures);
  return absl::OkStatus();
}

void AbortOfAPairOfItsOwn(const Mode& mode) {
  const Logs logs;
  double ms = 0;
  auto pair = StartJoined(mode, logs, &ms);
  if (!pair.ok()) return mode.Trouble(kKilled, "join", pair.status(), logs);
  const absl::Status status = AbortAfterDeath(mode, *pair);
  if (!status.ok()) mode.Trouble(kKilled, "abort", status, logs);
  pair->End();
}

// --- All ---------------------------------------------------------------------

void JoinSumAndAbort(const Mode& mode) {
  const Logs logs;
  double ms = 0;
  auto pair = StartJoined(mode, logs, &ms);
  if (!pair.ok()) {
    mode.Trouble(kJoin, "join", pair.status(), logs);
    for (const char* row : {kSums, kAbort, kKilled}) {
      mode.Missing(row, "the ranks could not join");
    }
    return;
  }
  mode.Measured(kJoin, "accepted", {{"join", ms, "ms"}});
  const Sums sums = SumAllSizes(mode, *pair, logs);
  if (sums == Sums::kAll) {
    const absl::Status status = AbortBoth(mode, *pair);
    if (!status.ok()) mode.Trouble(kAbort, "abort", status, logs);
    pair->End();
  } else {
    mode.Missing(kAbort, "the all-reduces before it failed");
    pair->Kill();
  }
  if (sums == Sums::kNone) return mode.Missing(kKilled, "no all-reduce works");
  AbortOfAPairOfItsOwn(mode);
}

void Measure(Lab& lab, const std::string& name) {
  const Mode mode = {lab, name};
  {
    const Logs logs;
    auto pair = Pair::Start(lab, logs, {"probe-0", "probe-1"});
    if (pair.ok()) pair->End();
    if (absl::IsUnavailable(pair.status())) {
      for (const char* row : kRows) {
        mode.Missing(row, std::string(pair.status().message()));
      }
      return;
    }
  }
  JoinAsOneHost(mode);
  JoinSumAndAbort(mode);
}

}  // namespace

void NcclOnOneGpu(Lab& lab) {
  WithoutAndWithMps(
      lab, [&](const std::string& name) { Measure(lab, name); },
      [&](const std::string& why) {
        for (const char* row : kRows) {
          Mode{lab, "MPS"}.Missing(row, why);
        }
      });
}

}  // namespace maypole::probe
