// Kill points: places where a test lets a process die.
//
// Purpose: "any process may die between any two instructions" is tested at
// those instructions that matter, the transitions of the board protocol. Each
// stands in the code as MAYPOLE_KILL_POINT("area.what"), and is nothing at all
// unless the build has MAYPOLE_KILL_POINTS (--//common:kill_points).
//
//   MAYPOLE_KILL_AT=arrival.claimed:3 program
//
// then kills the process (SIGKILL) as it passes that point for the third time.
// Names are listed in tests/kill_points_test.py, which fails if one is missing
// there. A simulation takes the points itself (kill_point_hook): it lets others
// go on while a rank stands at one.
//
// Thread contract: any thread.
#ifndef MAYPOLE_COMMON_BOARD_KILL_POINT_H_
#define MAYPOLE_COMMON_BOARD_KILL_POINT_H_

#ifdef MAYPOLE_KILL_POINTS

namespace maypole {
// Called at every point instead, if it is set. For one thread; it may throw.
extern void (*kill_point_hook)(const char* name);
// Passes the point: dies here if MAYPOLE_KILL_AT says so.
void PassKillPoint(const char* name);
}  // namespace maypole

#define MAYPOLE_KILL_POINT(name) ::maypole::PassKillPoint(name)
#else
#define MAYPOLE_KILL_POINT(name) static_cast<void>(0)
#endif

#endif  // MAYPOLE_COMMON_BOARD_KILL_POINT_H_
