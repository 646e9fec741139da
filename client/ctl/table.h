// Table: aligned columns that fit the width of a terminal.
//
//   Table table({{"JOB"}, {"RANKS", Table::Align::kRight}});
//   table.Add({"train", "1024"});
//   out += table.Text(80);
//
// If the table is too wide, the last column is cut at its end, but not below a
// width of kLeastLast. Then the widest other columns are cut in the middle, but
// not below kLeastOther.
//
// Thread contract: not synchronized; pure.
#ifndef MAYPOLE_CLIENT_CTL_TABLE_H_
#define MAYPOLE_CLIENT_CTL_TABLE_H_

#include <cstddef>
#include <string>
#include <vector>

namespace maypole::ctl {

class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string name;
    Align align = Align::kLeft;
  };
  static constexpr size_t kLeastLast = 16;
  static constexpr size_t kLeastOther = 12;

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // Adds a row, one cell per column. Control characters become "?".
  void Add(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }

  // A line with the column names, then one line per row; each ends with a
  // newline. width 0: no limit.
  std::string Text(size_t width) const;

 private:
  std::vector<size_t> Widths(size_t width) const;
  std::string Line(const std::vector<std::string>& cells,
                   const std::vector<size_t>& widths) const;

  const std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace maypole::ctl

#endif  // MAYPOLE_CLIENT_CTL_TABLE_H_
