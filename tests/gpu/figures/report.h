// Report: the figures of a run, as a table and as JSON.
//
//   Report report;
//   report.Add("copy/device", 4.1e12, "B/s");
//   report.Skip("reduce/k8/1024MiB", "the device has too little free memory");
//   report.Print();
//
// Thread contract: one thread.
#ifndef MAYPOLE_TESTS_GPU_FIGURES_REPORT_H_
#define MAYPOLE_TESTS_GPU_FIGURES_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

namespace maypole::cuda {

class Report {
 public:
  // Units: "B/s", "ns", "" for a share.
  void Add(const std::string& name, double value, const std::string& unit);
  void Skip(const std::string& name, const std::string& reason);
  // Adds NAME/p50 and NAME/p99.
  void AddTimes(const std::string& name, std::vector<uint64_t> nanoseconds);

  void Print() const;
  // False if the file cannot be written. `about`: members of the JSON object
  // besides "figures" and "skipped", such as "\"device\": \"...\"".
  bool WriteJson(const std::string& path, const std::string& about) const;

 private:
  struct Row {
    std::string name;
    double value;
    std::string unit;
    std::string skipped;  // the reason, or empty
  };
  std::vector<Row> rows_;
};

// A string of JSON, with its quotes.
std::string Quoted(const std::string& text);

}  // namespace maypole::cuda

#endif  // MAYPOLE_TESTS_GPU_FIGURES_REPORT_H_
