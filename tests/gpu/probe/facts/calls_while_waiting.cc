#include "tests/gpu/probe/facts/calls_while_waiting.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/gpu/probe/facts/crowd_page.h"
#include "tests/gpu/probe/lab/conversation.h"
#include "tests/gpu/probe/lab/flag_page.h"

namespace maypole::probe {
namespace {

constexpr int kFact = 8;
constexpr char kName[] = "calls while a stream waits";
constexpr Duration kStart = Seconds(30);
// A call that has not come back then waits for the stream.
constexpr Duration kVerdict = Seconds(1);
constexpr Duration kAfterRelease = Seconds(10);

// In this order: what one makes, a later one gives back.
constexpr const char* kCalls[] = {
    "memory_room",
    "create_stream",
    "create_event",
    "allocate",
    "export",
    "import",
    "register_host",
    "copy_to_host",
    "kernel",
    "kernel_never_launched_before",
    "synchronize_other_stream",
    "destroy_event",
    "destroy_stream",
    "unmap_imported",
    "free",
    "unregister_host",
};

struct Verdicts {
  std::vector<std::string> go_on, block, fail;
  std::vector<Figure> figures;
};

// One call, while the stream waits for `value`.
absl::Status Try(Actor& caller, const SharedMemory& page,
                 const std::string& call, uint64_t value, Verdicts& verdicts) {
  const auto calling =
      Ask(caller, absl::StrCat("try ", call, " ", value), "calling", kStart);
  if (!calling.ok()) return calling.status();
  absl::StatusOr<Words> called = Hear(caller, "called", kVerdict);
  const bool blocks = absl::IsDeadlineExceeded(called.status());
  StoreWord(page, kFlagWords, value);
  if (blocks) called = Hear(caller, "called", kAfterRelease);
  if (!called.ok()) {
    return absl::Status(called.status().code(),
                        absl::StrCat(call, ": ", called.status().message()));
  }
  if (blocks) {
    verdicts.block.push_back(call);
  } else if (const std::string why = called->Rest(2); !why.empty()) {
    verdicts.fail.push_back(absl::StrCat(call, " (", why, ")"));
  } else {
    verdicts.go_on.push_back(call);
    verdicts.figures.push_back({call, called->Number(1), "ms"});
  }
  return Ask(caller, "finish", "finished", kStart).status();
}

absl::Status TryAll(Lab& lab, Verdicts& verdicts) {
  auto page = SharedMemory::Create(kCrowdPageBytes);
  if (!page.ok()) return page.status();
  // CUDA's default, by which a kernel is loaded when it is first launched. The
  // plugin loads its own when it opens a device: this says whether that is
  // enough, not what a load would do.
  auto caller = lab.Start("caller", {}, {{"CUDA_MODULE_LOADING", "LAZY"}});
  if (!caller.ok()) return caller.status();
  const int fd = page->fd();
  const auto ready = Ask(*caller, "page", "ready", kStart, {&fd, 1});
  if (!ready.ok()) return ready.status();
  uint64_t value = 0;
  for (const char* call : kCalls) {
    const absl::Status status = Try(*caller, *page, call, ++value, verdicts);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

std::string Text(const Verdicts& verdicts) {
  std::string text = verdicts.block.empty()
                         ? "none blocks"
                         : absl::StrCat("BLOCK until the wait ends: ",
                                        absl::StrJoin(verdicts.block, ", "));
  absl::StrAppend(&text, "; go on: ", absl::StrJoin(verdicts.go_on, ", "));
  if (!verdicts.fail.empty()) {
    absl::StrAppend(&text, "; failed: ", absl::StrJoin(verdicts.fail, ", "));
  }
  return text;
}

}  // namespace

void CallsWhileWaiting(Lab& lab) {
  Verdicts verdicts;
  const absl::Status status = TryAll(lab, verdicts);
  if (!status.ok()) {
    return AddTrouble(lab, kFact, kName,
                      absl::StrCat("before it: ", Text(verdicts), "; then"),
                      status);
  }
  lab.report().Add({kFact, kName, Outcome::kMeasured, Text(verdicts),
                    std::move(verdicts.figures)});
}

}  // namespace maypole::probe
