// Fact 6: a stream that waits for a process that was killed.
//
// Each round a writer of its own is killed at a random moment around the write
// that the survivor's stream waits for. The survivor sees the death, writes the
// flag itself, and looks at what its stream ran then. Then the other way round:
// a process is killed while its own stream waits, beside one that works.
#include <sys/socket.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/gpu/probe/facts/dead_page.h"
#include "tests/gpu/probe/facts/facts.h"
#include "tests/gpu/probe/lab/conversation.h"
#include "tests/gpu/probe/lab/flag_page.h"

namespace maypole::probe {
namespace {

constexpr int kFact = 6;
constexpr char kMps[] = "MPS";
constexpr uint64_t kSeed = 6;
constexpr Duration kStart = Seconds(30);
// A survivor's round may last as long as it waits for the death, and for its
// stream.
constexpr Duration kRound = Seconds(60);
// The writer's stream writes the flag about 3 ms after it was told to.
constexpr int64_t kLatestKill = 4'500'000;  // ns
// Writers are started so many at a time: a start takes long.
constexpr int kWritersAtOnce = 8;
// One context may keep so much more or less than another.
constexpr double kRoomSlack = 64 << 20;
constexpr Duration kRoomTimeout = Seconds(5);

// Nothing is loaded lazily: that could have to wait for a stream that waits.
const std::map<std::string, std::string>& Eagerly() {
  static const auto* const kEnvironment =
      new std::map<std::string, std::string>{{"CUDA_MODULE_LOADING", "EAGER"}};
  return *kEnvironment;
}

struct Budget {
  int rounds = 0;
  int own_rounds = 0;
  Duration time;
};

Budget BudgetOf(const Options& options, bool mps) {
  if (options.quick) return {.rounds = 5, .own_rounds = 2, .time = Seconds(30)};
  if (mps) return {.rounds = 16, .own_rounds = 4, .time = Seconds(30)};
  return {.rounds = 100, .own_rounds = 8, .time = Seconds(60)};
}

// What the rounds gave; times in milliseconds.
struct Deaths {
  std::vector<double> seen, socket;  // from the kill
  std::vector<double> released;      // from the watchdog's write
  std::vector<double> whole;         // from the kill to the stream's end
  int begun = 0;                     // kills
  int rounds = 0, by_writer = 0, marked = 0, healthy = 0;
  int wrote_late = 0;
  double latest_us = 0;
  bool pidfd = true;
};

struct Writer {
  Actor actor;
  Fd socket;  // the other end of what it holds
};

absl::StatusOr<Writer> StartWriter(Lab& lab, int page) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::InternalError("socketpair");
  }
  Fd ours(ends[0]);
  const Fd theirs(ends[1]);
  auto actor = lab.Start("writer", {}, Eagerly());
  if (!actor.ok()) return actor.status();
  const int fd = theirs.get();
  absl::Status status = actor->channel().Send("socket", {&fd, 1});
  if (status.ok()) status = actor->channel().Send("page", {&page, 1});
  if (status.ok()) status = actor->channel().Send("are you ready");
  if (!status.ok()) return status;
  return Writer{*std::move(actor), std::move(ours)};
}

absl::StatusOr<std::vector<Writer>> StartWriters(Lab& lab, int page,
                                                 int count) {
  std::vector<Writer> out;
  for (int i = 0; i < count; ++i) {
    auto writer = StartWriter(lab, page);
    if (!writer.ok()) return writer.status();
    out.push_back(*std::move(writer));
  }
  for (Writer& writer : out) {
    const auto ready = Hear(writer.actor, "ready", kStart);
    if (!ready.ok()) return ready.status();
  }
  return out;
}

absl::StatusOr<Actor> StartSurvivor(Lab& lab, int page) {
  auto survivor = lab.Start("survivor", {}, Eagerly());
  if (!survivor.ok()) return survivor.status();
  const auto ready = Ask(*survivor, "page", "ready", kStart, {&page, 1});
  if (!ready.ok()) return ready.status();
  return survivor;
}

absl::Status PlayRound(Actor& survivor, Writer writer, uint64_t round,
                       int64_t kill_after, Deaths& deaths) {
  const int socket = writer.socket.get();
  const auto waiting =
      Ask(survivor, absl::StrCat("round ", round, " ", writer.actor.pid()),
          "waiting", kStart, {&socket, 1});
  if (!waiting.ok()) return waiting.status();
  writer.socket.Reset();  // the survivor's alone
  const absl::Status told =
      writer.actor.channel().Send(absl::StrCat("write ", round));
  if (!told.ok()) return told;
  std::this_thread::sleep_for(std::chrono::nanoseconds(kill_after));
  ++deaths.begun;
  const int64_t killed = Now();
  writer.actor.Kill();
  const auto went = Hear(survivor, "round", kRound);
  if (!went.ok()) return went.status();
  const auto since_kill = [&](size_t word) {
    return static_cast<double>(went->Integer(word) - killed) / 1e6;
  };
  deaths.seen.push_back(since_kill(1));
  if (went->Integer(2) != 0) deaths.socket.push_back(since_kill(2));
  if (went->Integer(5) != 0) {
    ++deaths.by_writer;
  } else {
    deaths.released.push_back(
        static_cast<double>(went->Integer(4) - went->Integer(3)) / 1e6);
    deaths.whole.push_back(since_kill(4));
  }
  ++deaths.rounds;
  deaths.marked += went->Integer(6) != 0;
  deaths.healthy += went->Integer(7) != 0;
  deaths.wrote_late += went->Integer(8) != 0;
  deaths.latest_us = std::max(deaths.latest_us, went->Number(9) / 1e3);
  deaths.pidfd = deaths.pidfd && went->Integer(10) != 0;
  return absl::OkStatus();
}

absl::Status PlayRounds(Lab& lab, const Budget& budget, Deaths& deaths) {
  auto page = SharedMemory::Create(kDeadPageBytes);
  if (!page.ok()) return page.status();
  auto survivor = StartSurvivor(lab, page->fd());
  if (!survivor.ok()) return survivor.status();
  std::mt19937_64 random(kSeed);
  std::uniform_int_distribution<int64_t> moment(0, kLatestKill);
  const auto end = Clock::now() + budget.time;
  uint64_t round = 2;  // the survivor's warm-up was the first
  while (deaths.rounds < budget.rounds && Clock::now() < end) {
    auto writers =
        StartWriters(lab, page->fd(),
                     std::min(kWritersAtOnce, budget.rounds - deaths.rounds));
    if (!writers.ok()) return writers.status();
    for (Writer& writer : *writers) {
      const absl::Status status = PlayRound(*survivor, std::move(writer),
                                            round++, moment(random), deaths);
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

void AddTimes(Row& row, const std::string& name, std::vector<double>& ms) {
  if (ms.empty()) return;
  row.figures.push_back({name + " p50", Quantile(ms, 0.5), "ms"});
  row.figures.push_back({name + " max", Quantile(ms, 1), "ms"});
}

Row RowOf(const std::string& name, Deaths& deaths) {
  Row row = {kFact, name, Outcome::kMeasured, "", {}};
  row.text = absl::StrFormat(
      "%d of %d streams released by the watchdog, the others by the killed "
      "process; %d ran what came after the wait (so outputs must be poisoned); "
      "%d contexts good afterwards; the dead wrote after its death was seen in "
      "%d rounds%s",
      deaths.rounds - deaths.by_writer, deaths.rounds, deaths.marked,
      deaths.healthy, deaths.wrote_late,
      deaths.pidfd ? "" : "; no pidfd here: death seen by a socket");
  AddTimes(row, "kill to death seen", deaths.seen);
  AddTimes(row, "kill to socket closed", deaths.socket);
  AddTimes(row, "write to stream done", deaths.released);
  AddTimes(row, "kill to stream done", deaths.whole);
  row.figures.push_back({"rounds", static_cast<double>(deaths.rounds), ""});
  row.figures.push_back({"released by the watchdog",
                         static_cast<double>(deaths.rounds - deaths.by_writer),
                         ""});
  row.figures.push_back({"ran on", static_cast<double>(deaths.marked), ""});
  row.figures.push_back(
      {"good afterwards", static_cast<double>(deaths.healthy), ""});
  row.figures.push_back(
      {"wrote after death", static_cast<double>(deaths.wrote_late), ""});
  row.figures.push_back({"latest such write", deaths.latest_us, "us"});
  return row;
}

// --- Killed while its own stream waits ---------------------------------------

struct OwnWaits {
  std::vector<double> back_ms;                // until its memory was free again
  std::vector<double> median_ms, slowest_ms;  // of the work beside
  int begun = 0;                              // kills
  int rounds = 0, returned = 0, undisturbed = 0;
};

absl::StatusOr<double> Room(Actor& actor) {
  const auto room = Ask(actor, "room", "room", kStart);
  if (!room.ok()) return room.status();
  return room->Number(1);
}

absl::Status PlayOwnRound(Lab& lab, Actor& worker, Actor& onlooker,
                          OwnWaits& waits) {
  const uint64_t bytes = lab.options().quick ? 8 << 20 : 1 << 30;
  const auto before = Room(onlooker);
  if (!before.ok()) return before.status();
  auto waiter = lab.Start("own waiter", {absl::StrCat(bytes)}, Eagerly());
  if (!waiter.ok()) return waiter.status();
  const auto waiting = Ask(*waiter, "what do you do", "waiting", kStart);
  if (!waiting.ok()) return waiting.status();
  const std::string work = lab.options().quick ? "work 0.6" : "work 2";
  const auto working = Ask(worker, work, "working", kStart);
  if (!working.ok()) return working.status();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  ++waits.begun;
  const int64_t killed = Now();
  waiter->Kill();
  bool back = false;
  while (!back && Now() - killed < kRoomTimeout.count()) {
    const auto room = Room(onlooker);
    if (!room.ok()) return room.status();
    back = *room + kRoomSlack >= *before;
  }
  const double ms = static_cast<double>(Now() - killed) / 1e6;
  const auto worked = Hear(worker, "worked", kStart);
  if (!worked.ok()) return worked.status();
  ++waits.rounds;
  if (back) {
    ++waits.returned;
    waits.back_ms.push_back(ms);
  }
  waits.undisturbed += worked->Integer(4) != 0;
  waits.median_ms.push_back(worked->Number(2));
  waits.slowest_ms.push_back(worked->Number(3));
  return absl::OkStatus();
}

absl::Status PlayOwnRounds(Lab& lab, const Budget& budget, OwnWaits& waits) {
  auto page = SharedMemory::Create(kDeadPageBytes);
  if (!page.ok()) return page.status();
  auto worker = StartSurvivor(lab, page->fd());
  if (!worker.ok()) return worker.status();
  auto onlooker = lab.Start("survivor", {}, Eagerly());
  if (!onlooker.ok()) return onlooker.status();
  while (waits.rounds < budget.own_rounds) {
    const absl::Status status = PlayOwnRound(lab, *worker, *onlooker, waits);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

Row RowOf(const std::string& name, OwnWaits& waits) {
  Row row = {kFact, name, Outcome::kMeasured, "", {}};
  row.text = absl::StrFormat(
      "memory of the killed came back in %d of %d rounds; work of another "
      "process went on, its results right in %d",
      waits.returned, waits.rounds, waits.undisturbed);
  AddTimes(row, "kill to memory back", waits.back_ms);
  AddTimes(row, "work beside, median", waits.median_ms);
  AddTimes(row, "work beside, slowest", waits.slowest_ms);
  row.figures.push_back({"rounds", static_cast<double>(waits.rounds), ""});
  return row;
}

std::string FirstName(const std::string& mode) {
  return absl::StrCat("a stream waits for the dead, ", mode);
}
std::string SecondName(const std::string& mode) {
  return absl::StrCat("the dead's own stream waits, ", mode);
}

// What the rounds before the one that went wrong gave is kept. That under MPS a
// kill breaks other processes would be an answer; without, the probe is wrong.
void Finish(Lab& lab, const std::string& mode, int begun,
            const absl::Status& status, Row row) {
  if (!status.ok()) {
    if (begun == 0) {
      return AddTrouble(lab, kFact, row.name, "before the first kill", status);
    }
    const bool hangs = absl::IsDeadlineExceeded(status);
    row.text = absl::StrCat(hangs ? "HANGS" : "BREAKS", " after kill ", begun,
                            ": ", status.message(), "; before: ", row.text);
    if (!hangs && mode != kMps) row.outcome = Outcome::kFailed;
  }
  lab.report().Add(std::move(row));
}

void Measure(Lab& lab, const std::string& mode) {
  const Budget budget = BudgetOf(lab.options(), mode == kMps);
  Deaths deaths;
  absl::Status status = PlayRounds(lab, budget, deaths);
  Finish(lab, mode, deaths.begun, status, RowOf(FirstName(mode), deaths));
  OwnWaits waits;
  status = PlayOwnRounds(lab, budget, waits);
  Finish(lab, mode, waits.begun, status, RowOf(SecondName(mode), waits));
}

}  // namespace

void WaitForTheDead(Lab& lab) {
  WithoutAndWithMps(
      lab, [&](const std::string& mode) { Measure(lab, mode); },
      [&](const std::string& why) {
        lab.report().NotMeasured(kFact, FirstName(kMps), why);
        lab.report().NotMeasured(kFact, SecondName(kMps), why);
      });
}

}  // namespace maypole::probe
