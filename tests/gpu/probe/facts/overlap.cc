// Facts 1 and 2: what a copier gets done while a spinner, another process,
// keeps multiprocessors busy without touching memory.
//
// Time slices would not show in a piece of work that is shorter than one: its
// events would both lie in the same slice. So batches are timed that take many
// slices (kTarget), in turn alone and beside the spinner.
#include "tests/gpu/probe/facts/overlap.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/gpu/probe/facts/facts.h"
#include "tests/gpu/probe/lab/conversation.h"

namespace maypole::probe {
namespace {

constexpr Duration kStart = Seconds(60);
constexpr Duration kStep = Seconds(40);
constexpr Duration kEnd = Seconds(10);
constexpr int kFewBlocks = 8;
constexpr int64_t kSpins = 2;  // of 20 ms, started together with a batch
// Until the two begin together: both have been told by then.
constexpr int64_t kLead = 100'000'000;
constexpr double kOverlaps = 1.2, kSliced = 1.5;

struct Case {
  std::string name;
  Work work;
  int copy_blocks;
  int spin_blocks;  // 0: the device is full of them
};

const std::vector<Case>& KernelCases() {
  static const auto* cases = new std::vector<Case>{
      {"copying kernel of 32 blocks", Work::kKernel, 32, kFewBlocks},
      {"copying kernel of the whole GPU", Work::kKernel, 0, kFewBlocks},
  };
  return *cases;
}

const std::vector<Case>& CopyCases() {
  static const auto* cases = new std::vector<Case>{
      {"copy within the device", Work::kWithin, 0, kFewBlocks},
      {"copy host to device", Work::kToDevice, 0, kFewBlocks},
      {"copy device to host", Work::kFromDevice, 0, kFewBlocks},
      {"copy within, beside a full GPU", Work::kWithin, 0, 0},
      {"host to device, beside a full GPU", Work::kToDevice, 0, 0},
      {"device to host, beside a full GPU", Work::kFromDevice, 0, 0},
      {"kernel, beside a full GPU", Work::kKernel, 32, 0},
  };
  return *cases;
}

struct Times {
  std::vector<double> alone, beside, host_alone, host_beside;  // ms
  int outlasted = 0;  // batches that ended only after the spins
};

std::string BatchCommand(const Case& c, int64_t count, int64_t at = 0) {
  return absl::StrCat("batch ", static_cast<int>(c.work), " ", c.copy_blocks,
                      " ", count, " ", at);
}

double Median(std::vector<double> values) { return Quantile(values, 0.5); }

// GB/s of the batch alone: read and written, where both are on the device.
double Rate(const Options& options, const Case& c, int64_t count, double ms) {
  const bool within = c.work == Work::kKernel || c.work == Work::kWithin;
  const double bytes = static_cast<double>(PieceBytes(options, c.work)) *
                       static_cast<double>(count) * (within ? 2 : 1);
  return bytes / ms / 1e6;
}

// There are no time slices between clients of MPS.
std::string Verdict(double ratio, int outlasted, bool mps) {
  const std::string times =
      absl::StrFormat("%.2f times as long as alone", ratio);
  if (outlasted > 0) {
    return absl::StrCat("WAITS: ", outlasted,
                        " batches ended only after the other process' kernels "
                        "had ended; ",
                        times);
  }
  if (ratio < kOverlaps) return "OVERLAPS: " + times;
  if (ratio > kSliced) return (mps ? "SLOWER: " : "TIME-SLICED: ") + times;
  return "PARTLY: " + times;
}

// The processes of one measurement.
struct Pair {
  Actor spinner, copier;
};

absl::StatusOr<Pair> StartPair(Lab& lab) {
  auto spinner = lab.Start("spinner");
  if (!spinner.ok()) return spinner.status();
  auto copier = lab.Start("copier");
  if (!copier.ok()) return copier.status();
  Pair pair{*std::move(spinner), *std::move(copier)};
  for (Actor* actor : {&pair.spinner, &pair.copier}) {
    const auto ready = Hear(*actor, "ready", kStart);
    if (!ready.ok()) return ready.status();
  }
  const auto warm = Ask(pair.spinner, "warm", "warm", kStep);
  if (!warm.ok()) return warm.status();
  return pair;
}

class Experiment {
 public:
  Experiment(Lab& lab, Pair pair)
      : pair_(std::move(pair)),
        options_(lab.options()),
        target_(options_.quick ? 5'000'000 : 40'000'000),
        repetitions_(options_.quick ? 3 : 7) {}
  // In good order: a client of MPS that is killed may disturb the others.
  ~Experiment() {
    for (Actor* actor : {&pair_.spinner, &pair_.copier}) {
      actor->End(kEnd).IgnoreError();
    }
  }

  // Pieces of a batch.
  absl::StatusOr<int64_t> Count(const Case& c) {
    const auto words = Ask(pair_.copier,
                           absl::StrCat("count ", static_cast<int>(c.work), " ",
                                        c.copy_blocks, " ", target_),
                           "count", kStep);
    if (!words.ok()) return words.status();
    return words->Integer(1);
  }

  absl::StatusOr<Times> AloneAndBeside(const Case& c, int64_t count) {
    Times times;
    const bool full = c.spin_blocks == 0;
    const int repetitions = full ? std::min(repetitions_, 3) : repetitions_;
    const int64_t limit = full ? 1'000'000'000 : 3'000'000'000;
    for (int i = 0; i < repetitions; ++i) {
      absl::Status status = Batch(c, count, &times.alone, &times.host_alone);
      if (!status.ok()) return status;
      const auto spinning =
          Ask(pair_.spinner, absl::StrCat("train ", c.spin_blocks, " ", limit),
              "spinning", kStep);
      if (!spinning.ok()) return spinning.status();
      status = Batch(c, count, &times.beside, &times.host_beside);
      if (!status.ok()) return status;
      const auto stopped = Ask(pair_.spinner, "stop", "stopped", kStep);
      if (!stopped.ok()) return stopped.status();
      if (stopped->Integer(1) == 0) ++times.outlasted;
    }
    return times;
  }

  struct Together {
    std::vector<double> spins, batch, both;  // ms
  };

  // Spins and a batch, each alone and then begun at the same time.
  absl::StatusOr<Together> BegunTogether(const Case& c, int64_t count) {
    Together out;
    for (int i = 0; i < repetitions_; ++i) {
      const auto spins = Ask(
          pair_.spinner, absl::StrCat("spins ", kSpins, " 0"), "took", kStep);
      if (!spins.ok()) return spins.status();
      const auto batch =
          Ask(pair_.copier, BatchCommand(c, count), "took", kStep);
      if (!batch.ok()) return batch.status();
      const int64_t at = Now() + kLead;
      absl::Status sent =
          pair_.spinner.channel().Send(absl::StrCat("spins ", kSpins, " ", at));
      if (!sent.ok()) return sent;
      const auto beside =
          Ask(pair_.copier, BatchCommand(c, count, at), "took", kStep);
      if (!beside.ok()) return beside.status();
      const auto spun = Hear(pair_.spinner, "took", kStep);
      if (!spun.ok()) return spun.status();
      out.spins.push_back(spins->Number(1) / 1e6);
      out.batch.push_back(batch->Number(2) / 1e6);
      out.both.push_back(std::max(spun->Number(1), beside->Number(2)) / 1e6);
    }
    return out;
  }

 private:
  absl::Status Batch(const Case& c, int64_t count, std::vector<double>* device,
                     std::vector<double>* host) {
    const auto took = Ask(pair_.copier, BatchCommand(c, count), "took", kStep);
    if (!took.ok()) return took.status();
    device->push_back(took->Number(1) / 1e6);
    host->push_back(took->Number(2) / 1e6);
    return absl::OkStatus();
  }

  Pair pair_;
  const Options& options_;
  const int64_t target_;
  const int repetitions_;
};

void AddBeside(Lab& lab, int fact, const std::string& name, const Case& c,
               int64_t count, Times times) {
  const double alone = Median(times.alone), beside = Median(times.beside);
  const double host = Median(times.host_beside) / Median(times.host_alone);
  const auto [least, most] =
      std::minmax_element(times.beside.begin(), times.beside.end());
  const double repetitions = static_cast<double>(times.beside.size());
  lab.report().Add(
      {fact,
       name,
       Outcome::kMeasured,
       Verdict(beside / alone, times.outlasted, absl::EndsWith(name, ", MPS")),
       {{"alone", alone, "ms"},
        {"beside", beside, "ms"},
        {"ratio", beside / alone, ""},
        {"ratio by host clock", host, ""},
        {"least", *least, "ms"},
        {"most", *most, "ms"},
        {"rate alone", Rate(lab.options(), c, count, alone), "GB/s"},
        {"repetitions", repetitions, ""}}});
}

void AddTogether(Lab& lab, int fact, const std::string& name,
                 const Experiment::Together& t) {
  const double spins = Median(t.spins), batch = Median(t.batch);
  const double both = Median(t.both);
  // 1: side by side; spins end in time whatever happens, so the copies' share
  // of the device until then shows in what is left.
  const double ratio = both / std::max(spins, batch);
  lab.report().Add(
      {fact,
       name,
       Outcome::kMeasured,
       absl::StrFormat("%.2f times as long as the longer alone; one after the "
                       "other would be %.2f",
                       ratio, (spins + batch) / std::max(spins, batch)),
       {{"spins alone", spins, "ms"},
        {"copies alone", batch, "ms"},
        {"together", both, "ms"},
        {"ratio", ratio, ""}}});
}

absl::Status MeasureBeside(Lab& lab, int fact, Experiment& experiment,
                           const Case& c, const std::string& name) {
  const auto count = experiment.Count(c);
  if (!count.ok()) return count.status();
  auto times = experiment.AloneAndBeside(c, *count);
  if (!times.ok()) return times.status();
  AddBeside(lab, fact, name, c, *count, *std::move(times));
  return absl::OkStatus();
}

absl::Status MeasureTogether(Lab& lab, int fact, Experiment& experiment,
                             const Case& c, const std::string& name) {
  const auto count = experiment.Count(c);
  if (!count.ok()) return count.status();
  const auto together = experiment.BegunTogether(c, *count);
  if (!together.ok()) return together.status();
  AddTogether(lab, fact, name, *together);
  return absl::OkStatus();
}

using Measurement = absl::Status (*)(Lab&, int, Experiment&, const Case&,
                                     const std::string&);

// With the processes of the measurement before, if that went well: they may
// hang otherwise.
void InPair(Lab& lab, int fact, std::optional<Experiment>& experiment,
            const Case& c, const std::string& name, Measurement measure) {
  if (!experiment.has_value()) {
    auto pair = StartPair(lab);
    if (!pair.ok()) {
      AddTrouble(lab, fact, name, "start", pair.status());
      return;
    }
    experiment.emplace(lab, *std::move(pair));
  }
  const absl::Status status = measure(lab, fact, *experiment, c, name);
  if (!status.ok()) {
    AddTrouble(lab, fact, name, "measure", status);
    experiment.reset();
  }
}

void MeasureCases(Lab& lab, int fact, const std::vector<Case>& cases,
                  const std::string& mode) {
  std::optional<Experiment> experiment;
  for (const Case& c : cases) {
    InPair(lab, fact, experiment, c, absl::StrCat(c.name, ", ", mode),
           MeasureBeside);
    if (fact != 1) continue;
    InPair(lab, fact, experiment, c,
           absl::StrCat(c.name, ", begun together, ", mode), MeasureTogether);
  }
}

void Measure(Lab& lab, int fact, const std::vector<Case>& cases) {
  WithoutAndWithMps(
      lab,
      [&](const std::string& mode) { MeasureCases(lab, fact, cases, mode); },
      [&](const std::string& why) {
        for (const Case& c : cases) {
          lab.report().NotMeasured(fact, absl::StrCat(c.name, ", MPS"), why);
        }
      });
}

}  // namespace

void KernelsOfTwoProcesses(Lab& lab) { Measure(lab, 1, KernelCases()); }

void CopiesBesideAKernel(Lab& lab) { Measure(lab, 2, CopyCases()); }

}  // namespace maypole::probe
