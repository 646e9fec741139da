#include "tests/simulation/election/world.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tests/simulation/election/candidate.h"
#include "tests/simulation/election/node.h"

namespace maypole::simulation {
namespace {

constexpr size_t kCandidates = 3;
constexpr auto kTtl = std::chrono::seconds(5);
// --lease_ttl and about a second (docs/high-availability.md), as the margin of
// a slow clock; and etcd ends a lease up to a second late.
constexpr int64_t kLeaderWithin = 7 * kSecond;
constexpr int64_t kLongest = 600 * kSecond;

class ElectionWorld {
 public:
  explicit ElectionWorld(const ElectionOptions& options)
      : stage_(options.seed), random_(stage_.random), trace_(options.trace) {
    stage_.ignore_loss = options.ignore_loss;
    stage_.accept_older = options.accept_older;
    stage_.skewed = options.seed % 4 == 0;
    const size_t slow = random_.Below(kCandidates);
    for (size_t i = 0; i < kCandidates; ++i) {
      double rate = 1 + static_cast<double>(random_.Between(-45, 45)) / 1000;
      if (stage_.skewed && i == slow) rate = 0.4;
      candidates_.push_back(std::make_unique<Candidate>(
          &stage_, static_cast<int>(i), rate, kTtl));
      // So that it leads first.
      if (stage_.skewed && i != slow) candidates_[i]->Pause(2 * kSecond);
    }
    const int nodes = static_cast<int>(random_.Between(2, 3));
    const int steps = static_cast<int>(random_.Between(20, 40));
    for (int i = 0; i < nodes; ++i) {
      nodes_.push_back(std::make_unique<ElectionNode>(
          &stage_, &ledger_, &candidates_, i, nodes, steps));
    }
    faults_left_ = stage_.skewed ? 16 : random_.Between(1, 6);
    PlanFault();
    Check();
  }

  ElectionResult Play() {
    while (!Finished() && stage_.found.empty()) {
      if (!stage_.scheduler.Step() || stage_.scheduler.now() > kLongest) {
        std::vector<std::string> state;
        for (const auto& n : nodes_) state.push_back(n->Text());
        stage_.found.push_back(
            absl::StrCat("the job does not end: ", absl::StrJoin(state, "; ")));
      }
    }
    if (!stage_.skewed && !ledger_.errors.empty()) {
      stage_.found.push_back(
          absl::StrCat("the job did not survive a change of leaders: ",
                       absl::StrJoin(ledger_.errors, "; ")));
    }
    ElectionResult result;
    for (const auto& c : candidates_) result.leaders += c->terms_led();
    result.taken_over = ledger_.taken_over;
    result.refused = ledger_.refused_terms;
    result.executed = ledger_.executed;
    result.epochs_ended = ledger_.ended.size();
    result.two_led = two_led_;
    result.longest_without_leader = longest_;
    result.found = stage_.found;
    return result;
  }

 private:
  bool Finished() const {
    return std::all_of(nodes_.begin(), nodes_.end(),
                       [](const auto& n) { return n->finished(); });
  }
  template <typename... Args>
  void Trace(const Args&... args) {
    if (!trace_) return;
    absl::PrintF("%12.3f ms  %s\n",
                 static_cast<double>(stage_.scheduler.now()) / kMillisecond,
                 absl::StrCat(args...));
  }
  void After(int64_t time, std::function<void()> what) {
    stage_.scheduler.After(time, life_, std::move(what));
  }
  // Something is wrong until then.
  void Disturb(int64_t time) {
    disturbed_until_ =
        std::max(disturbed_until_, stage_.scheduler.now() + time);
  }

  size_t Leader() {
    std::vector<size_t> leaders;
    for (size_t i = 0; i < kCandidates; ++i) {
      if (candidates_[i]->Leads()) leaders.push_back(i);
    }
    return leaders.empty() ? random_.Below(kCandidates) : random_.Pick(leaders);
  }

  void PlanFault() {
    if (faults_left_ == 0) return;
    const int64_t most = stage_.skewed ? 3 * kSecond : 15 * kSecond;
    After(random_.Magnitude(kSecond / 4, most), [this] {
      --faults_left_;
      BringFault();
      PlanFault();
    });
  }

  void BringFault() {
    const size_t i = random_.OneIn(4) ? random_.Below(kCandidates) : Leader();
    Candidate& c = *candidates_[i];
    const int64_t time = random_.Magnitude(kSecond / 4, 12 * kSecond);
    // Two leaders need a slow one that etcd does not hear of, and executors
    // that go from one to the other.
    const uint64_t what = stage_.skewed && !random_.OneIn(4)
                              ? (random_.OneIn(3) ? 2 : 5)
                              : random_.Below(6);
    switch (what) {
      case 0:
        Trace(c.address(), " is killed");
        Disturb(3 * kSecond);
        return c.Kill();
      case 1:
        Trace(c.address(), " is stopped for ", time / kMillisecond, " ms");
        Disturb(time + kSecond);
        return c.Pause(time);
      case 2:
        Trace(c.address(), " cannot reach etcd for ", time / kMillisecond,
              " ms");
        Disturb(time + kSecond);
        c.CutFromStore(true);
        return After(time, [&c] { c.CutFromStore(false); });
      case 3:
        Trace("etcd is away for ", time / kMillisecond, " ms");
        Disturb(time + kSecond);
        stage_.etcd_up = false;
        ++etcd_away_;
        return After(time, [this] { stage_.etcd_up = --etcd_away_ == 0; });
      case 4:
        Trace(c.address(), " is told to end");
        Disturb(3 * kSecond);
        return c.Resign();
      default: {
        const size_t node = random_.Below(nodes_.size());
        const int64_t cut = random_.Magnitude(kMillisecond, kSecond / 2);
        Trace("n", node, " cannot reach ", c.address(), " for ",
              cut / kMillisecond, " ms");
        return nodes_[node]->CutFrom(i, cut);
      }
    }
  }

  void Check() {
    const int64_t now = stage_.scheduler.now();
    const auto leading =
        std::count_if(candidates_.begin(), candidates_.end(),
                      [](const auto& c) { return c->Leads(); });
    if (leading > 1) ++two_led_;
    if (leading > 0 || now < disturbed_until_ || stage_.skewed) {
      without_since_ = now;
    }
    longest_ = std::max(longest_, now - without_since_);
    if (now - without_since_ > kLeaderWithin) {
      stage_.found.push_back("nobody leads, although nothing is wrong");
    }
    After(100 * kMillisecond, [this] { Check(); });
  }

  ElectionStage stage_;
  Random& random_;
  const bool trace_;
  ElectionLedger ledger_;
  const std::shared_ptr<int> life_ = std::make_shared<int>();
  std::vector<std::unique_ptr<Candidate>> candidates_;
  std::vector<std::unique_ptr<ElectionNode>> nodes_;
  int64_t faults_left_ = 0;
  int etcd_away_ = 0;
  int64_t disturbed_until_ = 0;
  int64_t without_since_ = kSecond;
  int64_t longest_ = 0;
  uint64_t two_led_ = 0;  // looks
};

}  // namespace

ElectionResult PlayElection(const ElectionOptions& options) {
  return ElectionWorld(options).Play();
}

}  // namespace maypole::simulation
