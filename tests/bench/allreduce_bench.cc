// allreduce_bench: one rank of a measurement of allreduce by the C++ API.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "tests/bench/cases.h"
#include "tests/bench/maypole_library.h"
#include "tests/bench/report.h"
#include "tests/bench/runner.h"

ABSL_FLAG(std::string, sizes, maypole::bench::kDefaultSizes,
          "Sizes of single tensors, in bytes or with KiB, MiB, GiB; empty for "
          "none.");
ABSL_FLAG(std::string, max_bytes, "", "Leaves out all that is larger.");
ABSL_FLAG(int, rounds, 0, "Measured rounds of every case; 0: by its size.");
ABSL_FLAG(bool, resnet, true, "Measures ResNet-50's 161 gradients too.");
ABSL_FLAG(std::string, json, "",
          "Rank 0 writes the result there, every round's time included.");
ABSL_FLAG(bool, list, false, "Prints what would be measured, and ends.");

namespace maypole::bench {
namespace {

constexpr char kUsage[] =
    R"(allreduce_bench: times allreduce. To be started once per rank:

  maypolerun -np 4 --nodes 2 --no-prefix allreduce_bench --max_bytes=1MiB

tests/bench/run.py does that. Rank 0 prints a table; a round's time is that of
its slowest rank. Every element of every result is checked: a wrong one is
reported and ends the program with status 1.)";

int Fail(const std::string& message) {
  std::fprintf(stderr, "allreduce_bench: %s\n", message.c_str());
  return 1;
}

std::string FileError(const std::string& path) {
  return "--json: cannot write " + path + ": " + std::strerror(errno);
}

// Opened before the measurement, so that a bad path is known at once.
using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

File OpenJson(const std::string& path, bool first_rank) {
  if (path.empty() || !first_rank) return File(nullptr, std::fclose);
  return File(std::fopen(path.c_str(), "w"), std::fclose);
}

bool Write(File file, const std::string& text) {
  const bool written = std::fputs(text.c_str(), file.get()) >= 0;
  return std::fclose(file.release()) == 0 && written;
}

int Measure(const std::vector<Case>& cases, const std::string& json) {
  std::unique_ptr<MaypoleLibrary> library;
  if (Status s = MaypoleLibrary::Join(&library); !s.ok()) {
    return Fail(s.message());
  }
  const bool first_rank = library->rank() == 0;
  File file = OpenJson(json, first_rank);
  if (first_rank && !json.empty() && file == nullptr) {
    return Fail(FileError(json));
  }
  const Title title{"C++", library->size(), library->nodes()};
  if (first_rank) std::fputs(HeadText(title).c_str(), stdout);
  Runner runner(library.get());
  std::vector<Row> rows;
  for (const Case& c : cases) {
    if (Status s = runner.Run(c, &rows.emplace_back()); !s.ok()) {
      return Fail(s.message());
    }
    if (first_rank) std::fputs(RowText(rows.back()).c_str(), stdout);
    std::fflush(stdout);
  }
  if (file != nullptr && !Write(std::move(file), JsonText(title, rows))) {
    return Fail(FileError(json));
  }
  return 0;
}

int Main() {
  CaseOptions options;
  options.sizes = absl::GetFlag(FLAGS_sizes);
  options.max_bytes = absl::GetFlag(FLAGS_max_bytes);
  options.rounds = absl::GetFlag(FLAGS_rounds);
  options.resnet = absl::GetFlag(FLAGS_resnet);
  std::vector<Case> cases;
  if (Status s = MakeCases(options, &cases); !s.ok()) {
    return Fail(s.message());
  }
  if (absl::GetFlag(FLAGS_list)) {
    std::fputs(ListText(cases).c_str(), stdout);
    return 0;
  }
  return Measure(cases, absl::GetFlag(FLAGS_json));
}

}  // namespace
}  // namespace maypole::bench

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(maypole::bench::kUsage);
  if (absl::ParseCommandLine(argc, argv).size() > 1) {
    return maypole::bench::Fail("it takes flags only; --help explains them");
  }
  return maypole::bench::Main();
}
