// The cases to measure: single tensors of given sizes, and ResNet-50's
// gradients.
//
// Purpose: turns the flags into a list of cases. The number of rounds follows
// from a case's bytes alone, never from a clock, so all ranks agree on it
// without asking each other. cases.py is the Python twin.
//
// Thread contract: pure functions and values.
#ifndef MAYPOLE_TESTS_BENCH_CPP_CASES_H_
#define MAYPOLE_TESTS_BENCH_CPP_CASES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "tests/bench/cpp/resnet50.h"

namespace maypole::bench {

// 4 B to 256 MiB, each four times the previous one.
inline constexpr char kDefaultSizes[] =
    "4,16,64,256,1KiB,4KiB,16KiB,64KiB,256KiB,1MiB,4MiB,16MiB,64MiB,256MiB";

struct Case {
  std::string label;               // for people: "64 KiB"
  std::vector<Parameter> tensors;  // float32; names unique over all cases
  int warmup = 0;                  // rounds before those that count
  int rounds = 0;

  int64_t bytes() const;
};

struct CaseOptions {
  std::string sizes = kDefaultSizes;  // of single tensors; "" for none
  std::string max_bytes;  // leaves out larger cases; "" for no limit
  int rounds = 0;         // of every case; 0: by its bytes
  bool resnet = true;
};

// An error names the wrong part of the text.
Status MakeCases(const CaseOptions& options, std::vector<Case>* out);

// "4", "64KiB", "1MiB", "1GiB"
Status ParseBytes(std::string_view text, int64_t* bytes);

// "4 B", "64 KiB", "1 MiB"; in bytes if that is not a whole number of them.
std::string BytesText(int64_t bytes);

// One line per case, then one per tensor of it, indented.
std::string ListText(const std::vector<Case>& cases);

}  // namespace maypole::bench

#endif  // MAYPOLE_TESTS_BENCH_CPP_CASES_H_
