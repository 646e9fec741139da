// How a launcher learns that a process of an elastic job has finished its
// training, rather than merely ended.
//
// maypolerun sets MAYPOLE_FINISHED_FILE for each process, to a path in its
// private directory. maypole_set_finished() makes the file, or removes it. When
// the process has ended, maypolerun looks for the file: if it exists, that
// training does not begin again, whatever the exit status.
#ifndef MAYPOLE_COMMON_FINISHED_FILE_H_
#define MAYPOLE_COMMON_FINISHED_FILE_H_

namespace maypole {

inline constexpr char kFinishedFileVariable[] = "MAYPOLE_FINISHED_FILE";

}  // namespace maypole

#endif  // MAYPOLE_COMMON_FINISHED_FILE_H_
