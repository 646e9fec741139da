#include "common/timeline/trace.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>

#include "common/wire/utf8.h"

namespace maypole {
namespace {

// Tracks of a process: operations from kOperationsTid on, late operations from
// kLateTid on.
constexpr int kOperationsTid = 1;
constexpr int kLateTid = 100'001;
constexpr int kNetworkTid = 100'001;
constexpr int kPresenceTid = 200'001;
// Ranks have the processes 1, 2, ...; executors follow them.
constexpr int kFirstExecutorPid = 100'000;
// A rank that was late for less is not marked. (The numbers are in each
// operation's arguments.)
constexpr int64_t kMarkedNs = 100'000;
// Operations of a rank that overlap, each on a track of its own; the last track
// takes all others.
constexpr size_t kMaxLanes = 1024;
// Arrows from a late rank to those that waited for it.
constexpr int kMaxArrows = 64;

std::string Microseconds(int64_t ns) {
  char text[48];
  std::snprintf(text, sizeof(text), "%s%" PRId64 ".%03d", ns < 0 ? "-" : "",
                std::abs(ns) / 1000, static_cast<int>(std::abs(ns) % 1000));
  return text;
}

std::string Milliseconds(int64_t ns) {
  char text[48];
  std::snprintf(text, sizeof(text), "%.6f", static_cast<double>(ns) / 1e6);
  return text;
}

std::string TitleOf(const OperationGroup& g) {
  std::string title(Name(g.kind));
  if (!g.name.empty()) title += " " + g.name;
  if (g.process_set != 0) title += " of set " + std::to_string(g.process_set);
  return title;
}

}  // namespace

std::string JsonString(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const size_t bytes = Utf8CharacterBytes(text);
    const char c = text.front();
    if (bytes == 0) {
      out += "\\ufffd";
    } else if (bytes == 1 && (c == '"' || c == '\\')) {
      out += '\\';
      out += c;
    } else if (bytes == 1 &&
               (static_cast<unsigned char>(c) < 0x20 || c == 127)) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", c);
      out += escaped;
    } else {
      out += text.substr(0, bytes);
    }
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
  return out + "\"";
}

// An event of the trace: a slice with a duration unless `phase` says otherwise.
struct Trace::Event {
  int pid = 0;
  int tid = 0;
  char phase = 'X';
  std::string name;
  std::string category;
  int64_t begin = 0;
  int64_t end = 0;
  std::string more = {};  // of the event, as JSON
  std::string arguments = {};
};

Trace::Trace(std::vector<std::string> nodes) : nodes_(std::move(nodes)) {
  text_ = "[";
}

void Trace::Line(std::string line) {
  text_ += any_ ? ",\n" : "\n";
  any_ = true;
  text_ += line;
}

void Trace::Finish() {
  for (const OperationGroup& group : arrivals_.TakeRest()) Write(group);
  text_ += "\n]\n";
}

void Trace::WriteEvent(const Event& e) {
  std::string line = "{\"ph\":\"" + std::string(1, e.phase) +
                     "\",\"pid\":" + std::to_string(e.pid) +
                     ",\"tid\":" + std::to_string(e.tid) +
                     ",\"ts\":" + Microseconds(e.begin);
  if (e.phase == 'X') {
    line += ",\"dur\":" + Microseconds(std::max<int64_t>(e.end - e.begin, 0));
  }
  line +=
      ",\"name\":" + JsonString(e.name) + ",\"cat\":" + JsonString(e.category);
  if (!e.more.empty()) line += "," + e.more;
  if (!e.arguments.empty()) line += ",\"args\":{" + e.arguments + "}";
  Line(line + "}");
}

void Trace::WriteName(int pid, int tid, std::string_view what,
                      std::string_view name, int sort_index) {
  const std::string of = ",\"pid\":" + std::to_string(pid) +
                         ",\"tid\":" + std::to_string(tid) + ",\"name\":\"" +
                         std::string(what);
  Line("{\"ph\":\"M\"" + of + "_name\",\"args\":{\"name\":" + JsonString(name) +
       "}}");
  Line("{\"ph\":\"M\"" + of + "_sort_index\",\"args\":{\"sort_index\":" +
       std::to_string(sort_index) + "}}");
}

// The viewer has one order for all processes, so the executors come after all
// ranks.
Trace::Process& Trace::ExecutorProcess(uint32_t node) {
  const auto [it, fresh] = executors_.try_emplace(node);
  Process& p = it->second;
  if (fresh) {
    p.pid = kFirstExecutorPid + static_cast<int>(node);
    const std::string name =
        node < nodes_.size() ? nodes_[node] : std::to_string(node);
    WriteName(p.pid, 0, "process", "executor " + name, p.pid);
  }
  return p;
}

Trace::Process& Trace::RankProcess(int32_t rank, uint32_t node) {
  const auto [it, fresh] = ranks_.try_emplace(rank);
  Process& p = it->second;
  if (fresh) {
    p.pid = rank + 1;
    const std::string name =
        node < nodes_.size() ? nodes_[node] : std::to_string(node);
    WriteName(p.pid, 0, "process",
              "rank " + std::to_string(rank) + " (" + name + ")", p.pid);
  }
  return p;
}

int Trace::LaneFor(Process* process, std::vector<int64_t>* lanes, int first_tid,
                   std::string_view name, int64_t begin, int64_t end) {
  size_t lane = 0;
  while (lane < lanes->size() && (*lanes)[lane] > begin) ++lane;
  lane = std::min(lane, kMaxLanes - 1);
  const int tid = first_tid + static_cast<int>(lane);
  if (lane == lanes->size()) {
    lanes->push_back(0);
    WriteName(process->pid, tid, "thread",
              lane == 0 ? std::string(name)
                        : std::string(name) + " " + std::to_string(lane + 1),
              tid);
  }
  (*lanes)[lane] = end;
  return tid;
}

void Trace::Add(std::string_view packed, uint32_t node, int64_t shift,
                uint64_t dropped) {
  ForRecords(packed, [&](const TimelineRecord& r) {
    now_ = std::max(now_, r.ended + shift);
    if (r.what != TimelineRecord::What::kOperation) {
      return WriteOfExecutor(r, node, shift);
    }
    for (const OperationGroup& group : arrivals_.Add(r, node, shift)) {
      Write(group);
    }
  });
  if (dropped > 0) WriteDropped(node, dropped);
}

void Trace::WriteDropped(uint32_t node, uint64_t dropped) {
  WriteEvent({.pid = ExecutorProcess(node).pid,
              .tid = kPresenceTid,
              .phase = 'i',
              .name = "records lost: " + std::to_string(dropped),
              .category = "lost",
              .begin = now_,
              .more = "\"s\":\"p\"",
              .arguments = "\"lost\":" + std::to_string(dropped)});
}

// --- Operations of ranks -----------------------------------------------------

void Trace::Write(const OperationGroup& group) {
  const Lateness lateness = LatenessOf(group);
  std::vector<int> tids;
  for (const OperationPart& part : group.parts) {
    tids.push_back(WritePart(group, lateness, part));
  }
  if (lateness.last_rank >= 0 &&
      lateness.last - lateness.previous >= kMarkedNs) {
    WriteLate(group, lateness, tids);
  }
}

// Returns the number of its track.
int Trace::WritePart(const OperationGroup& g, const Lateness& late,
                     const OperationPart& p) {
  Process& process = RankProcess(p.rank, p.node);
  Event e{.pid = process.pid,
          .tid = LaneFor(&process, &process.operations, kOperationsTid,
                         "operations", p.submitted, p.ended),
          .name = TitleOf(g),
          .category = "operation",
          .begin = p.submitted,
          .end = p.ended};
  e.arguments = "\"tensor\":" + JsonString(g.name) +
                ",\"kind\":" + JsonString(Name(g.kind)) +
                ",\"rank\":" + std::to_string(p.rank) +
                ",\"number\":" + std::to_string(g.number) +
                ",\"bytes\":" + std::to_string(p.bytes) +
                ",\"process_set\":" + std::to_string(g.process_set) +
                ",\"ranks\":" + std::to_string(g.members);
  if (p.arrived != 0) {
    e.arguments += ",\"arrived_us\":" + Microseconds(p.arrived);
  }
  if (late.last_rank >= 0) {
    e.arguments +=
        ",\"last_rank\":" + std::to_string(late.last_rank) +
        ",\"late_after_previous_ms\":" +
        Milliseconds(late.last - late.previous) +
        ",\"late_after_first_ms\":" + Milliseconds(late.last - late.first) +
        ",\"waited_ms\":" + Milliseconds(late.last - p.arrived);
  }
  if (p.failed) e.arguments += ",\"failed\":true";
  WriteEvent(e);
  // Its phases, named as in docs/metrics.md.
  const int64_t arrived = p.arrived != 0 ? p.arrived : p.ended;
  const int64_t begun = std::max(arrived, p.begun != 0 ? p.begun : p.ended);
  const int64_t on_node = std::clamp(LastOnNode(g, p.node), arrived, begun);
  WritePhase(e, "INPUT", p.submitted, arrived);
  WritePhase(e, "RANKS", arrived, on_node);
  WritePhase(e, "NODES", on_node, begun);
  if (p.begun != 0) WritePhase(e, "DATA", begun, p.ended);
  return e.tid;
}

void Trace::WritePhase(const Event& around, std::string_view name,
                       int64_t begin, int64_t end) {
  if (end <= begin) return;
  WriteEvent({.pid = around.pid,
              .tid = around.tid,
              .name = std::string(name),
              .category = "phase",
              .begin = begin,
              .end = end});
}

// The critical path: from the moment at which all others had arrived, they
// waited for this rank alone.
void Trace::WriteLate(const OperationGroup& g, const Lateness& late,
                      const std::vector<int>& tids) {
  const auto part = std::find_if(
      g.parts.begin(), g.parts.end(),
      [&](const OperationPart& p) { return p.rank == late.last_rank; });
  Process& process = RankProcess(late.last_rank, part->node);
  const int64_t late_ns = late.last - late.previous;
  char ms[32];
  std::snprintf(ms, sizeof(ms), "%.1f", static_cast<double>(late_ns) / 1e6);
  Event e{.pid = process.pid,
          .tid = LaneFor(&process, &process.others, kLateTid, "late",
                         late.previous, late.last),
          .name = "late by " + std::string(ms) + " ms for " + TitleOf(g),
          .category = "critical_path",
          .begin = late.previous,
          .end = late.last,
          .more = "\"cname\":\"terrible\""};
  e.arguments =
      "\"rank\":" + std::to_string(late.last_rank) +
      ",\"tensor\":" + JsonString(g.name) +
      ",\"kind\":" + JsonString(Name(g.kind)) +
      ",\"number\":" + std::to_string(g.number) +
      ",\"late_after_previous_ms\":" + Milliseconds(late_ns) +
      ",\"late_after_first_ms\":" + Milliseconds(late.last - late.first) +
      ",\"waiting\":" + std::to_string(g.parts.size() - 1);
  WriteEvent(e);
  int arrows = 0;
  for (size_t i = 0; i < g.parts.size(); ++i) {
    const OperationPart& p = g.parts[i];
    if (p.rank == late.last_rank || ++arrows > kMaxArrows) continue;
    const Process& waiting = RankProcess(p.rank, p.node);
    const std::string id = "\"id\":" + std::to_string(++flows_);
    // An arrow begins and ends in slices: it starts in the late rank's, and
    // ends in the operation of the other one.
    WriteEvent({.pid = e.pid,
                .tid = e.tid,
                .phase = 's',
                .name = "late",
                .category = "critical_path",
                .begin = late.last - 1,
                .more = id});
    WriteEvent({.pid = waiting.pid,
                .tid = tids[i],
                .phase = 'f',
                .name = "late",
                .category = "critical_path",
                .begin = std::max(p.submitted, std::min(late.last, p.ended)),
                .more = id + ",\"bp\":\"e\""});
  }
}

// --- Executors ---------------------------------------------------------------

void Trace::WriteOfExecutor(const TimelineRecord& r, uint32_t node,
                            int64_t shift) {
  Process& p = ExecutorProcess(node);
  const int64_t begin = r.submitted + shift;
  const int64_t end = r.ended + shift;
  const std::string title =
      std::string(Name(r.kind)) + " " + std::string(r.name);
  Event e{.pid = p.pid,
          .name = title,
          .category = "order",
          .begin = begin,
          .end = end};
  switch (r.what) {
    case TimelineRecord::What::kOrder:
      e.tid = LaneFor(&p, &p.operations, kOperationsTid, "order", begin, end);
      e.name = "NODES " + title;
      e.arguments = "\"tensor\":" + JsonString(r.name);
      break;
    case TimelineRecord::What::kNetwork:
      e.tid = LaneFor(&p, &p.others, kNetworkTid, "network", begin, end);
      e.name = "NETWORK " + title;
      e.category = "network";
      if (r.count > 1)
        e.name += " and " + std::to_string(r.count - 1) + " more";
      e.arguments = "\"tensor\":" + JsonString(r.name) +
                    ",\"operations\":" + std::to_string(r.count) +
                    ",\"bytes\":" + std::to_string(r.bytes);
      break;
    default:
      e.tid = kPresenceTid;
      e.phase = 'i';
      e.name = "PRESENCE";
      e.category = "presence";
      e.more = "\"s\":\"t\"";
      e.arguments = "\"operations\":" + std::to_string(r.count);
  }
  WriteEvent(e);
}

}  // namespace maypole
