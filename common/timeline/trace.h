// Trace: writes the job's timeline as a Chrome trace (JSON), which Perfetto and
// chrome://tracing open.
//
// Purpose: takes the records of all ranks and executors, and returns the text
// of the file piece by piece. docs/timeline.md describes what is in it.
//
//   Trace trace({"node1", "node2"});
//   trace.Add(packed, /*node=*/0, /*shift_ns=*/0, /*dropped=*/0);
//   file << trace.TakeText();
//   trace.Finish();
//   file << trace.TakeText();
//
// The text is valid JSON once Finish() has been called; before that only the
// closing bracket is missing, which both viewers accept.
//
// An operation of a rank is written when the records of all its ranks have
// come, because only then is it known which rank was late. Operations that
// overlap on a rank get tracks of their own (lanes).
//
// Thread contract: not synchronized; pure.
#ifndef MAYPOLE_COMMON_TIMELINE_TRACE_H_
#define MAYPOLE_COMMON_TIMELINE_TRACE_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/timeline/arrivals.h"
#include "common/timeline/record.h"

namespace maypole {

// The text in JSON's quotes. Bytes that are not UTF-8 become U+FFFD.
std::string JsonString(std::string_view text);

class Trace {
 public:
  // The job's nodes, by index.
  explicit Trace(std::vector<std::string> nodes);

  // Records of a node, whose times are shifted by shift_ns to the timeline's
  // clock. dropped: how many others were lost.
  void Add(std::string_view packed, uint32_t node, int64_t shift_ns,
           uint64_t dropped);
  void Finish();
  std::string TakeText() { return std::exchange(text_, {}); }
  size_t text_bytes() const { return text_.size(); }

 private:
  // Where in the file a rank's or an executor's events are.
  struct Process {
    int pid = 0;
    // By lane: the end of its last event. A rank's operations, or those that
    // an executor has negotiated; and when a rank was late, or an executor's
    // runs.
    std::vector<int64_t> operations;
    std::vector<int64_t> others;
  };
  struct Event;

  Process& RankProcess(int32_t rank, uint32_t node);
  Process& ExecutorProcess(uint32_t node);
  // The number of a track on which nothing happens at `begin` or later.
  int LaneFor(Process* process, std::vector<int64_t>* lanes, int first_tid,
              std::string_view name, int64_t begin, int64_t end);
  void Write(const OperationGroup& group);
  int WritePart(const OperationGroup& group, const Lateness& lateness,
                const OperationPart& part);
  // tids: the tracks of the group's parts.
  void WriteLate(const OperationGroup& group, const Lateness& lateness,
                 const std::vector<int>& tids);
  void WritePhase(const Event& around, std::string_view name, int64_t begin,
                  int64_t end);
  void WriteOfExecutor(const TimelineRecord& record, uint32_t node,
                       int64_t shift_ns);
  void WriteDropped(uint32_t node, uint64_t dropped);
  void WriteName(int pid, int tid, std::string_view what, std::string_view name,
                 int sort_index);
  void WriteEvent(const Event& event);
  void Line(std::string line);

  const std::vector<std::string> nodes_;
  Arrivals arrivals_;
  std::map<int32_t, Process> ranks_;
  std::map<uint32_t, Process> executors_;
  uint64_t flows_ = 0;
  int64_t now_ = 0;  // the latest time that was seen
  bool any_ = false;
  std::string text_;
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_TIMELINE_TRACE_H_
