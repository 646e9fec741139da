#include "client/ctl/table.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "client/ctl/text.h"

namespace maypole::ctl {
namespace {

constexpr size_t kGap = 2;

}  // namespace

void Table::Add(std::vector<std::string> cells) {
  for (std::string& cell : cells) cell = Printable(cell);
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::vector<size_t> Table::Widths(size_t width) const {
  std::vector<size_t> widths;
  for (size_t i = 0; i < columns_.size(); ++i) {
    widths.push_back(Width(columns_[i].name));
    for (const auto& row : rows_) {
      widths[i] = std::max(widths[i], Width(row[i]));
    }
  }
  if (width == 0) return widths;
  const size_t gaps = kGap * (columns_.size() - 1);
  const auto over = [&] {
    const size_t all =
        std::accumulate(widths.begin(), widths.end(), size_t{0}) + gaps;
    return all > width ? all - width : 0;
  };
  const size_t least = std::max(kLeastLast, Width(columns_.back().name));
  if (widths.back() > least) {
    widths.back() -= std::min(over(), widths.back() - least);
  }
  while (over() > 0) {
    const auto widest = std::max_element(widths.begin(), widths.end() - 1);
    if (widest == widths.end() - 1 || *widest <= kLeastOther) break;
    --*widest;
  }
  return widths;
}

std::string Table::Line(const std::vector<std::string>& cells,
                        const std::vector<size_t>& widths) const {
  std::string line;
  for (size_t i = 0; i < columns_.size(); ++i) {
    const bool last = i + 1 == columns_.size();
    const std::string cell =
        last ? CutEnd(cells[i], widths[i]) : CutMiddle(cells[i], widths[i]);
    const std::string space(widths[i] - std::min(widths[i], Width(cell)), ' ');
    line += columns_[i].align == Align::kRight ? space + cell : cell + space;
    if (!last) line += std::string(kGap, ' ');
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

std::string Table::Text(size_t width) const {
  const std::vector<size_t> widths = Widths(width);
  std::vector<std::string> names;
  for (const Column& column : columns_) names.push_back(column.name);
  std::string out = Line(names, widths);
  for (const auto& row : rows_) out += Line(row, widths);
  return out;
}

}  // namespace maypole::ctl
