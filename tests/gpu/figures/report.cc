#include "tests/gpu/figures/report.h"

#include <algorithm>
#include <cstdio>
#include <fstream>

namespace maypole::cuda {
namespace {

std::string Readable(double value, const std::string& unit) {
  char text[64];
  if (unit == "B/s") {
    std::snprintf(text, sizeof(text), "%10.1f GB/s", value / 1e9);
  } else if (unit == "ns") {
    std::snprintf(text, sizeof(text), "%10.2f us", value / 1e3);
  } else {
    std::snprintf(text, sizeof(text), "%10.3f", value);
  }
  return text;
}

}  // namespace

void Report::Add(const std::string& name, double value,
                 const std::string& unit) {
  rows_.push_back({name, value, unit, ""});
}

void Report::Skip(const std::string& name, const std::string& reason) {
  rows_.push_back({name, 0, "", reason});
}

void Report::AddTimes(const std::string& name, std::vector<uint64_t> times) {
  std::sort(times.begin(), times.end());
  const auto at = [&](size_t percent) {
    return static_cast<double>(times[(times.size() - 1) * percent / 100]);
  };
  Add(name + "/p50", at(50), "ns");
  Add(name + "/p99", at(99), "ns");
}

void Report::Print() const {
  for (const Row& row : rows_) {
    const std::string text = row.skipped.empty() ? Readable(row.value, row.unit)
                                                 : "skipped: " + row.skipped;
    std::printf("%-36s %s\n", row.name.c_str(), text.c_str());
  }
}

bool Report::WriteJson(const std::string& path,
                       const std::string& about) const {
  std::string figures, skipped;
  for (const Row& row : rows_) {
    std::string& list = row.skipped.empty() ? figures : skipped;
    if (!list.empty()) list += ",";
    list += "\n    {\"name\": " + Quoted(row.name);
    if (row.skipped.empty()) {
      char value[40];
      std::snprintf(value, sizeof(value), "%.6g", row.value);
      list += std::string(", \"value\": ") + value +
              ", \"unit\": " + Quoted(row.unit) + "}";
    } else {
      list += ", \"reason\": " + Quoted(row.skipped) + "}";
    }
  }
  std::ofstream file(path);
  file << "{\n  " << about << ",\n  \"figures\": [" << figures
       << "\n  ],\n  \"skipped\": [" << skipped << "\n  ]\n}\n";
  file.close();
  return file.good();
}

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return quoted + "\"";
}

}  // namespace maypole::cuda
