// Kill points: places where a test can kill a process.
//
// Purpose: any process may die between any two instructions. Tests check this
// at the instructions that matter, the transitions of the board protocol. Each
// is marked in the code by MAYPOLE_KILL_POINT("area.what"), which compiles to
// nothing unless the build has MAYPOLE_KILL_POINTS (--//common:kill_points).
//
//   MAYPOLE_KILL_AT=arrival.claimed:3 program
//
// then kills the process (SIGKILL) as it passes that point for the third time.
// tests/kill_points/kill_points_test.py lists all names and fails if one is
// missing. A simulation handles the points itself (kill_point_hook): it lets
// other ranks run while one rank is held at a point.
//
// Thread contract: any thread.
#ifndef MAYPOLE_COMMON_BOARD_KILL_POINT_H_
#define MAYPOLE_COMMON_BOARD_KILL_POINT_H_

#ifdef MAYPOLE_KILL_POINTS

namespace maypole {
// If set, called at every point instead of PassKillPoint's own action. For
// programs with one thread only; it may throw.
extern void (*kill_point_hook)(const char* name);
// Passes the point; kills the process if MAYPOLE_KILL_AT names it.
void PassKillPoint(const char* name);
}  // namespace maypole

#define MAYPOLE_KILL_POINT(name) ::maypole::PassKillPoint(name)
#else
#define MAYPOLE_KILL_POINT(name) static_cast<void>(0)
#endif

#endif  // MAYPOLE_COMMON_BOARD_KILL_POINT_H_
