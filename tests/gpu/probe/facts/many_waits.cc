// Fact 8: do many waiting streams block kernels that would release them?
//
// CUDA puts streams on few hardware queues (CUDA_DEVICE_MAX_CONNECTIONS), and
// what stands behind a wait in the same queue cannot run. For 2 to 128 waiting
// streams it is counted how much of what other streams are given does run: in
// the same process, in another, and where streams wait for each other. What
// does not run in kVerdict is said not to; then the host writes all flags, over
// and over (streams write them too), until every stream is done.
#include <algorithm>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/gpu/probe/facts/calls_while_waiting.h"
#include "tests/gpu/probe/facts/crowd_page.h"
#include "tests/gpu/probe/facts/facts.h"
#include "tests/gpu/probe/lab/conversation.h"
#include "tests/gpu/probe/lab/flag_page.h"

namespace maypole::probe {
namespace {

constexpr int kFact = 8;
constexpr int kQueues[] = {8, 32};
constexpr size_t kProcesses = 4;  // that wait
constexpr size_t kReleaser = kProcesses;
constexpr size_t kReleaserStreams = 8;
// Where nothing runs for so long, a thousand times what it takes, the rest is
// blocked. Between processes every hand-over may cost a time slice.
constexpr Duration kVerdict = Seconds(1);
constexpr Duration kLongest = Seconds(5);
constexpr Duration kStart = Seconds(60);
constexpr Duration kEnqueue = Seconds(3);
constexpr Duration kDrain = Seconds(20);
constexpr int kPulses = 20;
constexpr size_t kLater = 64;
// Values of one experiment: a pair uses two.
constexpr uint64_t kValueStep = 4;

std::vector<size_t> Counts(const Options& options) {
  if (options.quick) return {2, 8};
  return {2, 4, 8, 16, 32, 64, 128};
}

// One experiment of a number of waits: what ran of how much.
struct Seen {
  size_t ran = 0, of = 0;
  double ms = 0;               // until the last of them had run
  std::vector<Figure> others;  // besides
  bool enqueue_blocked = false;
};

class Crowds {
 public:
  Crowds(Lab& lab, SharedMemory page) : lab_(&lab), page_(std::move(page)) {}
  absl::Status Start(int queues);

  absl::StatusOr<Seen> LaterStreams(size_t waits);
  absl::StatusOr<Seen> ReleasedByLater(size_t waits);
  absl::StatusOr<Seen> Crosswise(size_t waits);
  absl::StatusOr<Seen> OtherProcess(size_t waits, size_t processes);
  absl::StatusOr<Seen> OppositeOrder(size_t waits);

 private:
  absl::Status Enqueue(size_t process, const std::string& what, size_t stream,
                       size_t index, size_t count, bool last_first, Seen* seen);
  void Count(size_t words, size_t count, Seen* seen);
  void Release();
  // All streams done, if it must be by the host's writes.
  absl::Status Drain();
  size_t most() const { return Counts(lab_->options()).back(); }
  // The first of the streams that release. One more than a multiple of the
  // queues: so that of a wait does not stand behind that very wait, which
  // LaterStreams counts, but behind its neighbour.
  size_t releasing() const { return most() + 1; }

  Lab* lab_;
  SharedMemory page_;
  std::vector<Actor> actors_;
  uint64_t value_ = kValueStep;
};

absl::Status Crowds::Start(int queues) {
  for (size_t i = 0; i <= kReleaser; ++i) {
    const size_t streams = i == kReleaser ? kReleaserStreams : 2 * most() + 1;
    auto actor =
        lab_->Start("crowd", {absl::StrCat(streams), absl::StrCat(i)},
                    {{"CUDA_DEVICE_MAX_CONNECTIONS", absl::StrCat(queues)},
                     {"CUDA_MODULE_LOADING", "EAGER"}});
    if (!actor.ok()) return actor.status();
    actors_.push_back(*std::move(actor));
  }
  const int fd = page_.fd();
  for (Actor& actor : actors_) {
    const absl::Status sent = actor.channel().Send("page", {&fd, 1});
    if (!sent.ok()) return sent;
  }
  for (Actor& actor : actors_) {
    const auto ready = Hear(actor, "ready", kStart);
    if (!ready.ok()) return ready.status();
  }
  return absl::OkStatus();
}

absl::Status Crowds::Enqueue(size_t process, const std::string& what,
                             size_t stream, size_t index, size_t count,
                             bool last_first, Seen* seen) {
  Actor& actor = actors_[process];
  const auto enqueued =
      Ask(actor,
          absl::StrCat("enqueue ", what, " ", stream, " ", index, " ", count,
                       " ", value_, " ", last_first ? 1 : 0),
          "enqueued", kEnqueue);
  if (!absl::IsDeadlineExceeded(enqueued.status())) return enqueued.status();
  // The call itself waits for a stream.
  seen->enqueue_blocked = true;
  Release();
  return Hear(actor, "enqueued", kDrain).status();
}

// Waits until `count` words have this experiment's value, or until none more
// had it for kVerdict.
void Crowds::Count(size_t words, size_t count, Seen* seen) {
  const int64_t start = Now();
  int64_t progress = start;
  seen->of = count;
  if (seen->enqueue_blocked) return;  // the host has released them already
  for (;;) {
    const size_t before = std::exchange(seen->ran, 0);
    for (size_t i = 0; i < count; ++i) {
      seen->ran += LoadWord(page_, words + i) >= value_;
    }
    const int64_t now = Now();
    if (seen->ran != before) progress = now;
    seen->ms = static_cast<double>(now - start) / 1e6;
    if (seen->ran == count || now - progress >= kVerdict.count() ||
        now - start >= kLongest.count()) {
      return;
    }
    std::this_thread::yield();
  }
}

void Crowds::Release() {
  for (size_t i = 0; i < kMostWaits; ++i) {
    StoreWord(page_, kFlagWords + i, value_ + 1);
    StoreWord(page_, kAnswerWords + i, value_ + 1);
  }
}

absl::Status Crowds::Drain() {
  for (Actor& actor : actors_) {
    const absl::Status sent = actor.channel().Send("drain");
    if (!sent.ok()) return sent;
  }
  const auto deadline = Clock::now() + kDrain;
  for (Actor& actor : actors_) {
    for (;;) {
      Release();
      const auto drained = Hear(actor, "drained", Seconds(0.001));
      if (drained.ok()) break;
      if (!absl::IsDeadlineExceeded(drained.status())) return drained.status();
      if (Clock::now() > deadline) {
        return absl::DeadlineExceededError(
            "streams are not done though the host has written all flags");
      }
    }
  }
  value_ += kValueStep;
  return absl::OkStatus();
}

// How many of many streams that were made later run a kernel while `waits`
// streams of their process wait?
absl::StatusOr<Seen> Crowds::LaterStreams(size_t waits) {
  Seen seen;
  const size_t later = std::min(kLater, most());
  absl::Status status = Enqueue(0, "waits", 0, 0, waits, false, &seen);
  if (status.ok()) {
    status = Enqueue(0, "work", most(), 0, later, false, &seen);
  }
  if (!status.ok()) return status;
  Count(kRanWords, later, &seen);
  status = Drain();
  if (!status.ok()) return status;
  return seen;
}

// How many of `waits` streams are released by the same process's streams that
// were made later, each by one?
absl::StatusOr<Seen> Crowds::ReleasedByLater(size_t waits) {
  Seen seen;
  absl::Status status = Enqueue(0, "waits", 0, 0, waits, false, &seen);
  if (status.ok()) {
    status = Enqueue(0, "releases", releasing(), 0, waits, false, &seen);
  }
  if (!status.ok()) return status;
  Count(kWaitedWords, waits, &seen);
  status = Drain();
  if (!status.ok()) return status;
  return seen;
}

// How many of waits / 2 pairs of streams of one process end, each of which
// needs both to go on?
absl::StatusOr<Seen> Crowds::Crosswise(size_t waits) {
  Seen seen;
  const size_t pairs = waits / 2;
  absl::Status status = Enqueue(0, "seconds", 0, 0, pairs, false, &seen);
  if (status.ok()) {
    status = Enqueue(0, "firsts", releasing(), 0, pairs, false, &seen);
  }
  if (!status.ok()) return status;
  Count(kWaitedWords, pairs, &seen);
  status = Drain();
  if (!status.ok()) return status;
  return seen;
}

// `waits` streams of 1 or 4 processes wait: how fast is another process's
// kernel, and does it release them all?
absl::StatusOr<Seen> Crowds::OtherProcess(size_t waits, size_t processes) {
  Seen seen;
  absl::Status status;
  processes = std::min(processes, waits);
  const size_t share = waits / processes;
  for (size_t i = 0; status.ok() && i < processes; ++i) {
    status = Enqueue(i, "waits", 0, i * share, share, false, &seen);
  }
  if (!status.ok()) return status;
  const auto pulsed = Ask(actors_[kReleaser], absl::StrCat("pulse ", kPulses),
                          "pulsed", kStart);
  if (!pulsed.ok()) return pulsed.status();
  if (pulsed->Integer(1) > 0) {
    seen.others = {{" kernel p50", pulsed->Number(2), "us"},
                   {" kernel max", pulsed->Number(3), "us"}};
  }
  status = Enqueue(kReleaser, "releases", 0, 0, waits, false, &seen);
  if (!status.ok()) return status;
  Count(kWaitedWords, waits, &seen);
  status = Drain();
  if (!status.ok()) return status;
  return seen;
}

// As Crosswise, the firsts in one process and the seconds in another, in
// opposite orders: so ranks are that disagree on the order of operations.
absl::StatusOr<Seen> Crowds::OppositeOrder(size_t waits) {
  Seen seen;
  const size_t pairs = waits / 2;
  absl::Status status = Enqueue(0, "seconds", 0, 0, pairs, false, &seen);
  if (status.ok()) status = Enqueue(1, "firsts", 0, 0, pairs, true, &seen);
  if (!status.ok()) return status;
  Count(kWaitedWords, pairs, &seen);
  status = Drain();
  if (!status.ok()) return status;
  return seen;
}

// --- Rows --------------------------------------------------------------------

struct Experiment {
  const char* name;
  const char* what;  // runs, or does not
  std::function<absl::StatusOr<Seen>(Crowds&, size_t)> measure;
};

const std::vector<Experiment>& Experiments() {
  static const auto* const kExperiments = new std::vector<Experiment>{
      {"later streams of the same process", "streams ran",
       [](Crowds& c, size_t n) { return c.LaterStreams(n); }},
      {"released by later streams of the same process", "waits were released",
       [](Crowds& c, size_t n) { return c.ReleasedByLater(n); }},
      {"crosswise in one process", "pairs ended",
       [](Crowds& c, size_t n) { return c.Crosswise(n); }},
      {"one process waits, another releases", "waits were released",
       [](Crowds& c, size_t n) { return c.OtherProcess(n, 1); }},
      {"four processes wait, another releases", "waits were released",
       [](Crowds& c, size_t n) { return c.OtherProcess(n, kProcesses); }},
      {"crosswise in two processes, opposite orders", "pairs ended",
       [](Crowds& c, size_t n) { return c.OppositeOrder(n); }},
  };
  return *kExperiments;
}

std::string RowName(const Experiment& experiment, int queues) {
  return absl::StrCat(experiment.name, ", ", queues, " queues");
}

// All numbers of waits: one row.
absl::Status Measure(Lab& lab, Crowds& crowds, const Experiment& experiment,
                     int queues) {
  Row row = {kFact, RowName(experiment, queues), Outcome::kMeasured, "", {}};
  std::string blocked;
  bool enqueue_blocked = false;
  const std::vector<size_t> counts = Counts(lab.options());
  for (const size_t waits : counts) {
    const auto seen = experiment.measure(crowds, waits);
    if (!seen.ok()) {
      return absl::Status(
          seen.status().code(),
          absl::StrCat(waits, " waits: ", seen.status().message()));
    }
    const std::string n = absl::StrCat("n=", waits);
    row.figures.push_back(
        {n, static_cast<double>(seen->ran), absl::StrCat("of ", seen->of)});
    if (seen->ran == seen->of)
      row.figures.push_back({n + " time", seen->ms, "ms"});
    for (const Figure& figure : seen->others) {
      row.figures.push_back({n + figure.name, figure.value, figure.unit});
    }
    enqueue_blocked = enqueue_blocked || seen->enqueue_blocked;
    if (seen->ran < seen->of) {
      absl::StrAppend(&blocked, blocked.empty() ? "" : ", ", seen->ran, " of ",
                      seen->of, " with ", waits);
    }
  }
  row.text = blocked.empty()
                 ? absl::StrCat("all ", experiment.what, " with 2 to ",
                                counts.back(), " waiting streams")
                 : absl::StrCat("BLOCKS: not all ", experiment.what,
                                " before the host released them: ", blocked,
                                " waiting");
  if (enqueue_blocked) row.text += "; calls that enqueue blocked too";
  lab.report().Add(std::move(row));
  return absl::OkStatus();
}

void NotMeasured(Lab& lab, const Experiment& experiment, int queues,
                 const std::string& why) {
  lab.report().NotMeasured(kFact, RowName(experiment, queues), why);
}

absl::StatusOr<Crowds> StartCrowds(Lab& lab, int queues) {
  auto page = SharedMemory::Create(kCrowdPageBytes);
  if (!page.ok()) return page.status();
  Crowds crowds(lab, *std::move(page));
  const absl::Status started = crowds.Start(queues);
  if (!started.ok()) return started;
  return crowds;
}

void MeasureQueues(Lab& lab, int queues) {
  std::string broken;
  absl::StatusOr<Crowds> crowds = StartCrowds(lab, queues);
  for (const Experiment& experiment : Experiments()) {
    if (!broken.empty()) {
      NotMeasured(lab, experiment, queues, broken);
      continue;
    }
    const absl::Status status = crowds.ok()
                                    ? Measure(lab, *crowds, experiment, queues)
                                    : crowds.status();
    if (status.ok()) continue;
    AddTrouble(lab, kFact, RowName(experiment, queues), "experiment", status);
    // The next has processes of its own.
    crowds = absl::CancelledError();
    crowds = StartCrowds(lab, queues);
    if (!crowds.ok()) broken = "the processes could not be started again";
  }
}

}  // namespace

void ManyWaits(Lab& lab) {
  for (const int queues : kQueues) MeasureQueues(lab, queues);
  CallsWhileWaiting(lab);
}

}  // namespace maypole::probe
