// Fact 4: memory that one process exports and another maps, and what becomes of
// it, and of the other, when either is killed.
//
// A third process, the observer, says how much memory the device has left. What
// goes wrong after a death is a finding, not a failure of the experiment.
#include "tests/gpu/probe/facts/exported_memory.h"

#include <cstdlib>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/gpu/probe/facts/facts.h"
#include "tests/gpu/probe/lab/conversation.h"

namespace maypole::probe {
namespace {

constexpr int kFact = 4;
constexpr Duration kStart = Seconds(60);
constexpr Duration kStep = Seconds(30);
constexpr Duration kEnd = Seconds(10);
constexpr Duration kBack = Seconds(5);
// The device's memory counts as returned if no more than this is missing.
constexpr double kTolerance = 64 << 20;
// What the memory is filled with.
constexpr uint32_t kFirstWord = 0x1badf00d;
constexpr uint32_t kSecondWord = 0x2c0ffee2;

constexpr char kShared[] = "one writes, the other reads";
constexpr char kExporter[] = "exporter killed";
constexpr char kImporter[] = "importer killed";
constexpr char kBoth[] = "both gone";
constexpr char kFreed[] = "exporter frees it";
constexpr char kDescriptor[] = "only a descriptor is left";
const char* const kNames[] = {kShared,   kExporter, kBoth,
                              kImporter, kFreed,    kDescriptor};

double Mebibytes(double bytes) { return bytes / (1 << 20); }

class Experiment {
 public:
  Experiment(Lab& lab, std::string mode)
      : lab_(lab),
        mode_(std::move(mode)),
        asked_(lab.options().quick ? 20 << 20 : 1 << 30) {}
  ~Experiment() {
    for (auto* actor : {&exporter_, &importer_, &observer_}) End(*actor);
  }

  void Measure() {
    const absl::Status status = Open();
    if (status.ok()) {
      KillTheExporter();
      KillTheImporter();
      FreeWhileMapped();
      KeepADescriptor();
    } else {
      Trouble(kShared, status);
    }
    for (const char* name : kNames) {
      if (named_.count(name) > 0) continue;
      lab_.report().NotMeasured(kFact, RowName(name),
                                "the measurement before it went wrong");
    }
  }

 private:
  // Begins with nobody but the observer.
  absl::Status Open() {
    const absl::Status status = KeepAnObserver();
    if (!status.ok()) return status;
    return Look(&nobody_);
  }

  void KillTheExporter() {
    absl::Status status = Share();
    if (!status.ok()) return Trouble(kShared, status);
    AddShared();
    // In the middle of its work.
    const auto busy = Do(exporter_, absl::StrCat("busy ", kFirstWord), "busy");
    if (!busy.ok()) return Trouble(kExporter, busy);
    exporter_->Kill();
    exporter_.reset();
    double after = 0;
    status = GoesOn(importer_, kFirstWord);
    if (status.ok()) status = Look(&after);
    if (status.ok()) {
      AddRow(kExporter, "the importer still reads and writes it",
             {{"free before any", Mebibytes(nobody_), "MiB"},
              {"free with the importer", Mebibytes(after), "MiB"},
              {"still taken", Mebibytes(nobody_ - after), "MiB"}});
    } else {
      AddRow(kExporter, absl::StrCat("THE IMPORTER FAILS: ", status.message()),
             {});
    }
    AddBack(kBoth, nobody_, [this] { importer_->Kill(); });
    importer_.reset();
  }

  void KillTheImporter() {
    double with_exporter = 0;
    absl::Status status = StartExporter();
    if (status.ok()) status = Look(&with_exporter);
    if (status.ok()) status = StartImporter();
    if (!status.ok()) return Trouble(kImporter, status);
    const auto busy = Do(importer_, absl::StrCat("busy ", kFirstWord), "busy");
    if (!busy.ok()) return Trouble(kImporter, busy);
    const int64_t killed = Now();
    importer_->Kill();
    importer_.reset();
    const auto back = UntilBack(with_exporter, killed);
    status = Writes(exporter_);
    if (status.ok()) {
      AddRow(
          kImporter,
          absl::StrCat("the exporter still reads and writes it; ", back.text),
          back.figures);
    } else {
      AddRow(kImporter, absl::StrCat("THE EXPORTER FAILS: ", status.message()),
             {});
    }
    End(exporter_);
  }

  void FreeWhileMapped() {
    absl::Status status = Share();
    if (status.ok()) status = Do(exporter_, "free", "freed");
    if (!status.ok()) return Trouble(kFreed, status);
    status = GoesOn(importer_, kFirstWord);
    AddRow(kFreed,
           status.ok() ? "the importer still reads and writes it"
                       : absl::StrCat("THE IMPORTER FAILS: ", status.message()),
           {});
    End(exporter_);
    End(importer_);
  }

  void KeepADescriptor() {
    absl::Status status = StartExporter();
    if (status.ok()) {
      status = Do(exporter_, absl::StrCat("write ", kFirstWord), "written");
    }
    if (!status.ok()) return Trouble(kDescriptor, status);
    exporter_->Kill();
    exporter_.reset();
    // Long enough for what is given back to be back.
    std::this_thread::sleep_for(std::chrono::seconds(1));
    double kept = 0;
    status = Look(&kept);
    if (!status.ok()) return Trouble(kDescriptor, status);
    const std::vector<Figure> figures = {
        {"free before any", Mebibytes(nobody_), "MiB"},
        {"free with the descriptor", Mebibytes(kept), "MiB"},
        {"still taken", Mebibytes(nobody_ - kept), "MiB"}};
    status = StartImporter();
    if (status.ok()) status = GoesOn(importer_, kFirstWord);
    AddRow(kDescriptor,
           status.ok()
               ? "the memory lives: a new process maps it and finds what was "
                 "written"
               : absl::StrCat("THE MEMORY IS LOST: ", status.message()),
           figures);
    End(importer_);
  }

  absl::StatusOr<Actor> StartOne(const std::string& role) {
    auto actor = lab_.Start(role);
    if (!actor.ok()) return actor.status();
    const auto ready = Hear(*actor, "ready", kStart);
    if (!ready.ok()) return ready.status();
    return actor;
  }

  static absl::Status Do(std::optional<Actor>& actor, const std::string& what,
                         const std::string& answer) {
    return Ask(*actor, what, answer, kStep).status();
  }

  static void End(std::optional<Actor>& actor) {
    if (actor.has_value()) actor->End(kEnd).IgnoreError();
    actor.reset();
  }

  // A death of before may have taken the observer's context along (MPS).
  absl::Status KeepAnObserver() {
    double ignored = 0;
    if (observer_.has_value() && Look(&ignored).ok()) return absl::OkStatus();
    observer_.reset();
    auto observer = StartOne("observer");
    if (!observer.ok()) return observer.status();
    observer_ = *std::move(observer);
    return absl::OkStatus();
  }

  // The exporter, and a descriptor of its memory here.
  absl::Status StartExporter() {
    const absl::Status observed = KeepAnObserver();
    if (!observed.ok()) return observed;
    auto actor = StartOne("holder");
    if (!actor.ok()) return actor.status();
    exporter_ = *std::move(actor);
    absl::Status status = Look(&before_allocation_);
    if (!status.ok()) return status;
    auto words =
        Ask(*exporter_, absl::StrCat("allocate ", asked_), "descriptor", kStep);
    if (!words.ok()) return words.status();
    bytes_ = words->Integer(1);
    descriptor_ = words->TakeFd();
    status = Hear(*exporter_, "exported", kStep).status();
    if (!status.ok()) return status;
    return Look(&allocated_);
  }

  // The importer, which gets the descriptor that is then closed here.
  absl::Status StartImporter() {
    auto actor = StartOne("holder");
    if (!actor.ok()) return actor.status();
    importer_ = *std::move(actor);
    absl::Status status = Look(&before_import_);
    if (!status.ok()) return status;
    const int fd = descriptor_.get();
    status = Ask(*importer_, absl::StrCat("import ", bytes_), "imported", kStep,
                 {&fd, 1})
                 .status();
    descriptor_.Reset();
    if (!status.ok()) return status;
    return Look(&imported_);
  }

  // Both, and what the importer writes the exporter reads.
  absl::Status Share() {
    absl::Status status = StartExporter();
    if (status.ok()) status = StartImporter();
    if (status.ok()) {
      status = Do(importer_, absl::StrCat("write ", kFirstWord), "written");
    }
    if (status.ok()) status = Holds(exporter_, kFirstWord);
    return status;
  }

  absl::Status Holds(std::optional<Actor>& actor, uint32_t word) {
    const auto holds =
        Ask(*actor, absl::StrCat("check ", word), "holds", kStep);
    if (!holds.ok()) return holds.status();
    if (holds->Integer(1) == 1) return absl::OkStatus();
    return absl::DataLossError("the memory does not hold what was written");
  }

  absl::Status Writes(std::optional<Actor>& actor) {
    const absl::Status status =
        Do(actor, absl::StrCat("write ", kSecondWord), "written");
    if (!status.ok()) return status;
    return Holds(actor, kSecondWord);
  }

  // It still finds `word`, and can write another.
  absl::Status GoesOn(std::optional<Actor>& actor, uint32_t word) {
    const absl::Status status = Holds(actor, word);
    if (!status.ok()) return status;
    return Writes(actor);
  }

  absl::Status Look(double* free_bytes) {
    const auto room = Ask(*observer_, "room", "room", kStep);
    if (!room.ok()) return room.status();
    *free_bytes = room->Number(1);
    return absl::OkStatus();
  }

  struct Back {
    std::string text;
    std::vector<Figure> figures;
  };

  // Until as much is free as there was, seen by the observer.
  Back UntilBack(double wanted, int64_t since) {
    double free_bytes = 0;
    for (;;) {
      const absl::Status status = Look(&free_bytes);
      const double took = static_cast<double>(Now() - since);
      if (!status.ok()) {
        return {absl::StrCat("THE OBSERVER FAILS: ", status.message()), {}};
      }
      const std::vector<Figure> figures = {
          {"until the memory is back", took / 1e6, "ms"},
          {"missing", Mebibytes(wanted - free_bytes), "MiB"}};
      if (wanted - free_bytes <= kTolerance) {
        return {"all memory comes back", figures};
      }
      if (took > static_cast<double>(kBack.count())) {
        return {"MEMORY DOES NOT COME BACK", figures};
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  template <typename Ending>
  void AddBack(const char* name, double wanted, Ending ending) {
    const int64_t since = Now();
    ending();
    Back back = UntilBack(wanted, since);
    AddRow(name, back.text, std::move(back.figures));
  }

  void AddShared() {
    AddRow(
        kShared, "what the importer writes the exporter reads, all of it",
        {{"size", Mebibytes(static_cast<double>(bytes_)), "MiB"},
         {"taken by a process", Mebibytes(nobody_ - before_allocation_), "MiB"},
         {"taken by the allocation", Mebibytes(before_allocation_ - allocated_),
          "MiB"},
         {"taken by the import", Mebibytes(before_import_ - imported_),
          "MiB"}});
  }

  void AddRow(const char* name, std::string text, std::vector<Figure> figures) {
    named_.insert(name);
    lab_.report().Add({kFact, RowName(name), Outcome::kMeasured,
                       std::move(text), std::move(figures)});
  }

  void Trouble(const char* name, const absl::Status& status) {
    named_.insert(name);
    if (absl::IsUnimplemented(status)) {
      lab_.report().NotMeasured(kFact, RowName(name),
                                std::string(status.message()));
    } else {
      AddTrouble(lab_, kFact, RowName(name), "measure", status);
    }
    // Whoever may hang is gone before the next one.
    exporter_.reset();
    importer_.reset();
    descriptor_.Reset();
  }

  std::string RowName(const char* name) const {
    return absl::StrCat(name, ", ", mode_);
  }

  Lab& lab_;
  const std::string mode_;
  const int64_t asked_;
  std::set<std::string> named_;  // the rows that there are
  int64_t bytes_ = 0;            // of the memory, as exported
  Fd descriptor_;
  std::optional<Actor> observer_, exporter_, importer_;
  // Free memory of the device, as the observer saw it.
  double nobody_ = 0, before_allocation_ = 0, allocated_ = 0;
  double before_import_ = 0, imported_ = 0;
};

}  // namespace

void ExportedMemory(Lab& lab) {
  WithoutAndWithMps(
      lab, [&](const std::string& mode) { Experiment(lab, mode).Measure(); },
      [&](const std::string& why) {
        for (const char* name : kNames) {
          lab.report().NotMeasured(kFact, absl::StrCat(name, ", MPS"), why);
        }
      });
}

}  // namespace maypole::probe
