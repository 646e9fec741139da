// allreduce_bench: one rank of a measurement of allreduce by the C++ API.
#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "tests/bench/cpp/cases.h"
#include "tests/bench/cpp/maypole_library.h"
#include "tests/bench/cpp/report.h"
#include "tests/bench/cpp/runner.h"

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

// After every case, so that a failure leaves what was measured before it.
Status WriteJson(const std::string& path, const Title& title,
                 const std::vector<Row>& rows) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  bool written = file != nullptr;
  if (written) {
    written = std::fputs(JsonText(title, rows).c_str(), file) >= 0;
    written = std::fclose(file) == 0 && written;
  }
  return written ? Status() : ErrnoStatus(errno, "--json: writing " + path);
}

// Rank 0's part: the table and the file.
Status Show(const std::string& text, const std::string& json,
            const Title& title, const std::vector<Row>& rows) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
  return json.empty() ? Status() : WriteJson(json, title, rows);
}

Status Measure(Library* library, const std::vector<Case>& cases,
               const std::string& json) {
  const Title title{"C++", library->size(), library->nodes()};
  const bool shows = library->rank() == 0;
  std::vector<Row> rows;
  if (shows) {
    if (Status s = Show(HeadText(title), json, title, rows); !s.ok()) return s;
  }
  Runner runner(library);
  for (const Case& c : cases) {
    if (Status s = runner.Run(c, &rows.emplace_back()); !s.ok()) return s;
    if (!shows) continue;
    Status s = Show(RowText(rows.back()), json, title, rows);
    if (!s.ok()) return s;
  }
  return Status();
}

int JoinAndMeasure(const std::vector<Case>& cases, const std::string& json) {
  std::unique_ptr<MaypoleLibrary> library;
  if (Status s = MaypoleLibrary::Join(&library); !s.ok()) {
    return Fail(s.message());
  }
  if (Status s = Measure(library.get(), cases, json); !s.ok()) {
    return Fail("rank " + std::to_string(library->rank()) + " of " +
                std::to_string(library->size()) + ": " + s.message());
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
  return JoinAndMeasure(cases, absl::GetFlag(FLAGS_json));
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
