// Interruption: interrupts or kills a rank between two steps of the board's
// protocol.
//
// Purpose: a turn of a process runs without interruption except at the kill
// points in the code (common/board/kill_point.h): at each of them the seed may
// let other events run before the rank continues, or let the rank die there.
//
// Thread contract: one object at a time in a process, because the hook is
// global.
#ifndef MAYPOLE_TESTS_SIMULATION_INTERRUPTION_H_
#define MAYPOLE_TESTS_SIMULATION_INTERRUPTION_H_

#include <functional>
#include <string>

#include "tests/simulation/stage.h"

namespace maypole::simulation {

// Thrown at a kill point: the rank that runs there dies.
struct Killed {};

class Interruption {
 public:
  // go_on: runs one event of any other part.
  Interruption(Stage* stage, std::function<void()> go_on);
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  // Runs a turn of a rank that may be interrupted; returns true if the rank has
  // died in it. *points_left: the number of kill points after which it dies; 0:
  // it does not die.
  bool Run(int* points_left, const std::function<void()>& turn);

 private:
  static void OnPoint(const char* name);
  void AtPoint(const char* name);

  Stage* const stage_;
  const std::function<void()> go_on_;
  int* points_left_ = nullptr;  // of the running rank; null: none runs
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_INTERRUPTION_H_
