#include "tests/gpu/probe/lab/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace maypole::probe {
namespace {

// With two spaces between them: 160.
constexpr size_t kWidths[] = {4, 30, 12, 60, 46};
constexpr size_t kColumns = std::size(kWidths);

std::string_view Name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kMeasured:
      return "measured";
    case Outcome::kNotMeasured:
      return "not measured";
    case Outcome::kFailed:
      return "failed";
  }
  return "unknown";
}

// Lines of at most `width`, broken at spaces where there are any.
std::vector<std::string> Wrap(std::string_view text, size_t width) {
  std::vector<std::string> lines;
  while (text.size() > width) {
    size_t end = text.rfind(' ', width);
    if (end == std::string_view::npos || end == 0) end = width;
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
    while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  }
  if (!text.empty() || lines.empty()) lines.emplace_back(text);
  return lines;
}

// Four digits; more before the point are not hidden.
std::string Short(double value) {
  return std::abs(value) < 1000 ? absl::StrFormat("%.4g", value)
                                : absl::StrFormat("%.0f", value);
}

// A figure is not broken if it fits in a line.
std::vector<std::string> FigureLines(const std::vector<Figure>& figures,
                                     size_t width) {
  std::vector<std::string> lines;
  std::string line;
  for (const Figure& f : figures) {
    const std::string text = absl::StrCat(f.name, " ", Short(f.value),
                                          f.unit.empty() ? "" : " ", f.unit);
    if (!line.empty() && line.size() + 2 + text.size() > width) {
      lines.push_back(line + ",");
      line.clear();
    }
    absl::StrAppend(&line, line.empty() ? "" : ", ", text);
  }
  std::vector<std::string> out;
  lines.push_back(line);
  for (const std::string& l : lines) {
    for (std::string& part : Wrap(l, width)) out.push_back(std::move(part));
  }
  return out;
}

void AppendCells(const std::vector<std::string> (&cells)[kColumns],
                 std::string* out) {
  size_t height = 0;
  for (const auto& cell : cells) height = std::max(height, cell.size());
  for (size_t i = 0; i < height; ++i) {
    std::string line;
    for (size_t c = 0; c < kColumns; ++c) {
      std::string part = i < cells[c].size() ? cells[c][i] : "";
      part.resize(kWidths[c], ' ');
      absl::StrAppend(&line, c == 0 ? "" : "  ", part);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(out, line, "\n");
  }
}

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(&out, "\\u%04x", c);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

// JSON has no infinity and no NaN.
std::string Number(double value) {
  return std::isfinite(value) ? absl::StrFormat("%.17g", value) : "null";
}

std::string FigureJson(const Figure& f) {
  return absl::StrCat("{\"name\": ", Quoted(f.name),
                      ", \"value\": ", Number(f.value),
                      ", \"unit\": ", Quoted(f.unit), "}");
}

std::string RowJson(const Row& row) {
  std::string figures;
  for (const Figure& f : row.figures) {
    absl::StrAppend(&figures, figures.empty() ? "" : ",\n      ",
                    FigureJson(f));
  }
  return absl::StrCat("{\"fact\": ", row.fact, ", \"name\": ", Quoted(row.name),
                      ",\n     \"outcome\": ", Quoted(Name(row.outcome)),
                      ",\n     \"text\": ", Quoted(row.text),
                      ",\n     \"figures\": [", figures, "]}");
}

// One line: texts of drivers may have more.
std::string OneLine(std::string_view text) {
  std::string out(text);
  std::replace(out.begin(), out.end(), '\n', ' ');
  return out;
}

std::vector<Row> ByFact(std::vector<Row> rows) {
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return a.fact < b.fact; });
  return rows;
}

}  // namespace

void Report::SetMachine(const std::string& key, const std::string& value) {
  for (auto& [k, v] : machine_) {
    if (k == key) {
      v = value;
      return;
    }
  }
  machine_.emplace_back(key, value);
}

void Report::Add(Row row) {
  const auto after = std::upper_bound(
      rows_.begin(), rows_.end(), row.fact,
      [](int fact, const Row& other) { return fact < other.fact; });
  rows_.insert(after, std::move(row));
}

void Report::Failed(int fact, const std::string& name,
                    const absl::Status& status) {
  Add({fact, name, Outcome::kFailed, std::string(status.message()), {}});
}

std::string Report::Table() const {
  std::string out;
  for (const auto& [key, value] : machine_) {
    absl::StrAppend(&out, key, ": ", OneLine(value), "\n");
  }
  if (!machine_.empty()) out += "\n";
  AppendCells({{"fact"}, {"what"}, {"outcome"}, {"seen"}, {"figures"}}, &out);
  for (const Row& row : ByFact(rows_)) {
    AppendCells({{absl::StrCat(row.fact)},
                 Wrap(row.name, kWidths[1]),
                 {std::string(Name(row.outcome))},
                 Wrap(OneLine(row.text), kWidths[3]),
                 FigureLines(row.figures, kWidths[4])},
                &out);
  }
  return out;
}

std::string Report::Json() const {
  std::string machine, rows;
  for (const auto& [key, value] : machine_) {
    absl::StrAppend(&machine, machine.empty() ? "" : ",", "\n    ", Quoted(key),
                    ": ", Quoted(value));
  }
  for (const Row& row : ByFact(rows_)) {
    absl::StrAppend(&rows, rows.empty() ? "" : ",", "\n    ", RowJson(row));
  }
  return absl::StrCat("{\n  \"version\": 1,\n  \"machine\": {", machine,
                      "\n  },\n  \"rows\": [", rows, "\n  ]\n}\n");
}

}  // namespace maypole::probe
