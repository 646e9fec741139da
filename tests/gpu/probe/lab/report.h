// Report: the probe's results, as a table for people and as JSON for the
// repository.
//
// Invariants: every fact has at least one row; a row that was not measured
// gives the reason and has no figures. Figures are written as they were
// measured, with their units; nothing is rounded in the JSON.
//
// Thread contract: a value; not synchronized.
#ifndef MAYPOLE_TESTS_GPU_PROBE_LAB_REPORT_H_
#define MAYPOLE_TESTS_GPU_PROBE_LAB_REPORT_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace maypole::probe {

struct Figure {
  std::string name;  // "p50", "beside", "copy rate"
  double value = 0;
  std::string unit;  // "us", "GB/s", "" for a count
};

enum class Outcome {
  kMeasured,     // measured figures, or an observed verdict
  kNotMeasured,  // something needed is missing: `text` names it
  kFailed,       // the experiment itself failed: `text` says how
};

struct Row {
  int fact = 0;      // 1 to 8
  std::string name;  // "kernel beside kernel, MPS"; unique within a fact
  Outcome outcome = Outcome::kNotMeasured;
  std::string text;  // one line: what was seen, in words
  std::vector<Figure> figures = {};
};

class Report {
 public:
  // key: "device", "driver", "nccl", "host cpu", ...: the JSON's "machine".
  void SetMachine(const std::string& key, const std::string& value);
  // Rows are kept by fact, those of one as they came.
  void Add(Row row);
  void NotMeasured(int fact, const std::string& name, const std::string& why) {
    Add({fact, name, Outcome::kNotMeasured, why, {}});
  }
  void Failed(int fact, const std::string& name, const absl::Status& status);
  const std::vector<Row>& rows() const { return rows_; }

  // Fixed-width columns, at most 160 wide: fact, name, outcome, text, figures.
  std::string Table() const;
  std::string Json() const;

 private:
  std::vector<std::pair<std::string, std::string>> machine_;
  std::vector<Row> rows_;
};

}  // namespace maypole::probe

#endif  // MAYPOLE_TESTS_GPU_PROBE_LAB_REPORT_H_
