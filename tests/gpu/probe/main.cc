// probe: measures the GPU facts of docs/gpu-facts.md with processes of its own,
// and prints one table and, if asked, one JSON.
//
// Exit status: 0: each chosen fact was measured, or the machine lacks something
// that it needs; 1: an experiment failed, or a flag is wrong; 3: no GPU.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "tests/gpu/probe/facts/facts.h"
#include "tests/gpu/probe/lab/lab.h"
#include "tests/gpu/probe/lab/machine.h"
#include "tests/gpu/probe/lab/report.h"

ABSL_FLAG(std::string, plugin, "",
          "Path of libmaypole_gpu.so. Empty: $MAYPOLE_GPU_PLUGIN, or the one "
          "beside this program.");
ABSL_FLAG(std::string, nccl, "",
          "Path of libnccl.so.2. Empty: as the dynamic linker finds it, or in "
          "$NCCL_HOME/lib.");
ABSL_FLAG(bool, fake, false,
          "No GPU at all: a fake, to test the probe. Figures mean nothing.");
ABSL_FLAG(bool, quick, false, "Small sizes and few rounds.");
ABSL_FLAG(std::string, device, "", "UUID of the GPU. Empty: the first.");
ABSL_FLAG(std::vector<std::string>, facts, {},
          "Numbers of the facts to measure, such as 1,3. Empty: all.");
ABSL_FLAG(std::string, json, "",
          "File for the results, written anew after each fact.");
ABSL_FLAG(int, seconds, 420,
          "No fact begins later than this number of seconds after the start.");

namespace maypole::probe {
namespace {

constexpr int kFailure = 1;
constexpr int kNoGpu = 3;

constexpr char kUsage[] =
    "measures how processes share a GPU: what docs/gpu-facts.md lists.\n"
    "  probe [--facts=1,3] [--quick] [--json=FILE]";

// The reason why there is no GPU, without the words "no GPUs".
std::string Reason(const absl::Status& status) {
  return std::string(absl::StripPrefix(status.message(), "no GPUs: "));
}

// The chosen facts; empty if a word is not the number of a fact.
std::set<int> ChosenFacts(const std::vector<std::string>& words) {
  std::set<int> known, chosen;
  for (const Fact& fact : Facts()) known.insert(fact.number);
  for (const std::string& word : words) {
    int number = 0;
    if (!absl::SimpleAtoi(word, &number) || known.count(number) == 0) {
      return {};
    }
    chosen.insert(number);
  }
  return words.empty() ? known : chosen;
}

class Run {
 public:
  Run(Options options, std::set<int> chosen)
      : lab_(std::move(options), &report_), chosen_(std::move(chosen)) {}

  int Measure() {
    if (lab_.options().fake) {
      report_.SetMachine("note", "a fake GPU: the figures mean nothing");
    }
    const absl::Status device = DescribeMachine(lab_);
    if (!device.ok()) {
      std::fprintf(stderr,
                   "gpu probe: no GPU here: %s; build with --config=cuda and "
                   "run tests/gpu/run.sh on a machine with an NVIDIA driver\n",
                   Reason(device).c_str());
    }
    bool written = true;
    for (const Fact& fact : Facts()) {
      MeasureOne(fact, device);
      written = WriteJson() && written;
    }
    std::fputs(report_.Table().c_str(), stdout);
    if (!device.ok()) return kNoGpu;
    return Failed() || !written ? kFailure : EXIT_SUCCESS;
  }

 private:
  void MeasureOne(const Fact& fact, const absl::Status& device) {
    if (!device.ok()) {
      report_.NotMeasured(fact.number, fact.title,
                          absl::StrCat("no GPU: ", Reason(device)));
    } else if (chosen_.count(fact.number) == 0) {
      report_.NotMeasured(fact.number, fact.title, "not asked for");
    } else if (Elapsed() > absl::GetFlag(FLAGS_seconds)) {
      report_.NotMeasured(fact.number, fact.title,
                          "no time was left (--seconds)");
    } else {
      std::fprintf(stderr, "gpu probe: %5.1f s: fact %d, %s\n", Elapsed(),
                   fact.number, fact.title);
      fact.measure(lab_);
      report_.SetMachine(absl::StrCat("seconds of fact ", fact.number),
                         absl::StrCat(Elapsed() - last_));
    }
    last_ = Elapsed();
  }

  double Elapsed() const {
    return std::chrono::duration<double>(Clock::now() - start_).count();
  }

  bool Failed() const {
    for (const Row& row : report_.rows()) {
      if (row.outcome == Outcome::kFailed) return true;
    }
    return false;
  }

  bool WriteJson() const {
    const std::string path = absl::GetFlag(FLAGS_json);
    if (path.empty()) return true;
    std::ofstream out(path, std::ios::trunc);
    out << report_.Json();
    out.close();
    if (!out)
      std::fprintf(stderr, "gpu probe: cannot write %s\n", path.c_str());
    return static_cast<bool>(out);
  }

  const Clock::time_point start_ = Clock::now();
  double last_ = 0;
  Report report_;
  Lab lab_;
  const std::set<int> chosen_;
};

int Main(int argc, char** argv) {
  absl::SetProgramUsageMessage(kUsage);
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  const std::set<int> chosen = ChosenFacts(absl::GetFlag(FLAGS_facts));
  if (rest.size() > 1 || chosen.empty()) {
    std::fprintf(stderr, "gpu probe: usage: %s\n", kUsage);
    return kFailure;
  }
  // Kernels are loaded before the first stream waits for a flag: a lazy load
  // may wait for the device.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  Options options;
  options.plugin = absl::GetFlag(FLAGS_plugin);
  options.nccl = absl::GetFlag(FLAGS_nccl);
  options.fake = absl::GetFlag(FLAGS_fake);
  options.quick = absl::GetFlag(FLAGS_quick);
  options.device = absl::GetFlag(FLAGS_device);
  const auto drivers = PrepareDrivers(options);
  if (!drivers.ok()) {
    std::fprintf(stderr, "gpu probe: %s\n",
                 std::string(drivers.status().message()).c_str());
    return kFailure;
  }
  return Run(std::move(options), chosen).Measure();
}

}  // namespace
}  // namespace maypole::probe

int main(int argc, char** argv) {
  if (const auto status = maypole::probe::PlayRole(argc, argv)) return *status;
  return maypole::probe::Main(argc, argv);
}
