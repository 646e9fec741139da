#include "tests/simulation/interruption.h"

#include <utility>

#include "common/board/kill_point.h"

namespace maypole::simulation {
namespace {

constexpr int kMostDepth = 3;
constexpr uint64_t kOneIn = 48;  // points
constexpr int64_t kLongest = 2 * kMillisecond;

#ifdef MAYPOLE_KILL_POINTS
Interruption* current = nullptr;
#endif

}  // namespace

Interruption::Interruption(Stage* stage, std::function<void()> go_on)
    : stage_(stage), go_on_(std::move(go_on)) {
#ifdef MAYPOLE_KILL_POINTS
  current = this;
  kill_point_hook = &OnPoint;
#endif
}

Interruption::~Interruption() {
#ifdef MAYPOLE_KILL_POINTS
  kill_point_hook = nullptr;
  current = nullptr;
#endif
}

bool Interruption::Run(int* points_left, const std::function<void()>& turn) {
  int* const before = std::exchange(points_left_, points_left);
  bool died = false;
  try {
    turn();
  } catch (const Killed&) {
    died = true;
  }
  points_left_ = before;
  return died;
}

void Interruption::OnPoint(const char* name) {
#ifdef MAYPOLE_KILL_POINTS
  current->AtPoint(name);
#else
  static_cast<void>(name);
#endif
}

void Interruption::AtPoint(const char* name) {
  if (points_left_ == nullptr) return;  // an executor or the world runs
  if (*points_left_ > 0 && --*points_left_ == 0) {
    stage_->Trace("(at ", name, ":)");
    throw Killed();
  }
  if (stage_->interrupted >= kMostDepth || !stage_->random.OneIn(kOneIn))
    return;
  ++stage_->counts.interruptions;
  ++stage_->interrupted;
  int* const mine = std::exchange(points_left_, nullptr);
  const int64_t until = stage_->scheduler.now() + kLongest;
  for (int64_t n = stage_->random.Magnitude(1, 64); n > 0; --n) {
    if (stage_->scheduler.empty() || stage_->scheduler.next() > until) break;
    go_on_();
  }
  points_left_ = mine;
  --stage_->interrupted;
}

}  // namespace maypole::simulation
