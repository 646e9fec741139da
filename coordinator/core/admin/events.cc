#include "coordinator/core/admin/events.h"

#include <algorithm>
#include <utility>

#include "common/wire/utf8.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {
namespace {

// The end of the value that begins at `from`.
size_t EndOfValue(absl::string_view line, size_t from) {
  if (from >= line.size() || line[from] != '"') {
    return std::min(line.find(' ', from), line.size());
  }
  for (size_t i = from + 1; i < line.size(); ++i) {
    if (line[i] == '\\') {
      ++i;
    } else if (line[i] == '"') {
      return i + 1;
    }
  }
  return line.size();
}

}  // namespace

std::string LogField(absl::string_view line, absl::string_view key) {
  size_t at = 0;
  while (at < line.size()) {
    const size_t equals = line.find('=', at);
    if (equals == absl::string_view::npos) return "";
    const size_t end = EndOfValue(line, equals + 1);
    if (line.substr(at, equals - at) == key) {
      absl::string_view value = line.substr(equals + 1, end - equals - 1);
      if (value.size() >= 2 && value.front() == '"') {
        value = value.substr(1, value.size() - 2);
      }
      return std::string(value);
    }
    at = end + 1;
  }
  return "";
}

void EventRing::Add(double unix_seconds, Level level, absl::string_view line) {
  auto event = std::make_shared<proto::Event>();
  event->set_number(++last_);
  event->set_unix_seconds(unix_seconds);
  event->set_level(kLevelNames[static_cast<int>(level)]);
  event->set_job(LogField(line, "job"));
  event->set_kind(LogField(line, "event"));
  event->set_text(Cut(ToUtf8(std::string(line)), kMaxEventBytes));
  events_.push_back(std::move(event));
  if (events_.size() > limit_) events_.pop_front();
}

EventRing::Page EventRing::Read(const std::string& job, uint64_t after,
                                size_t most) const {
  Page page;
  const uint64_t gone = last_ - events_.size();  // up to this number
  if (after < gone) page.forgotten = gone - after;
  // `after` may be an earlier coordinator's number, and too great.
  page.after = std::clamp(after, gone, last_);
  const size_t first = page.after - gone;
  const size_t end = std::min(events_.size(), first + most);
  for (size_t i = first; i < end; ++i) {
    if (job.empty() || events_[i]->job() == job) {
      page.events.push_back(events_[i]);
    }
    ++page.after;
  }
  return page;
}

}  // namespace maypole::coordinator
